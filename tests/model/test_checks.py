from __future__ import annotations

import math
import pickle
from dataclasses import dataclass

import pytest

from captioner.model.checks import SettingError, check_choices, check_least, check_positive, check_shares, check_types


@dataclass(frozen=True)
class Section:
    count: int = 1
    rate: float = 0.5
    name: str | None = "a"


def test_a_refused_setting_is_told_by_fields() -> None:
    with pytest.raises(ValueError, match=r"^lemon count is 1; it must be at least 2$") as caught:
        check_least("lemon", Section(), count=2)
    error = caught.value
    assert isinstance(error, SettingError)
    assert (error.section, error.name, error.reason) == ("lemon", "count", "is 1; it must be at least 2")


def test_a_refused_setting_goes_from_process_to_process() -> None:
    error = pickle.loads(pickle.dumps(SettingError("", "beam", "is 0; it must be at least 1")))
    assert str(error) == "beam is 0; it must be at least 1"  # of no section
    assert (error.section, error.name) == ("", "beam")


@pytest.mark.parametrize("right", [Section(), Section(rate=2), Section(name=None)])
def test_types_that_are_declared_are_right(right: Section) -> None:
    check_types("lemon", right)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (Section(count=True), "count"),
        (Section(count=1.0), "count"),  # type: ignore[arg-type]
        (Section(rate=math.nan), "rate"),
        (Section(name=3), "name"),  # type: ignore[arg-type]
    ],
)
def test_other_types_are_refused(wrong: Section, name: str) -> None:
    with pytest.raises(SettingError, match=r"; expected ") as caught:
        check_types("lemon", wrong)
    assert caught.value.name == name


def test_ranges_and_choices_end_where_they_say() -> None:
    check_choices("lemon", Section(), name=("a", "b"))
    check_shares("lemon", Section(rate=0), "rate")
    for check in (
        lambda: check_choices("lemon", Section(), name=("b", "c")),
        lambda: check_shares("lemon", Section(rate=1), "rate"),
        lambda: check_positive("lemon", Section(rate=0), "rate"),
    ):
        with pytest.raises(SettingError):
            check()
