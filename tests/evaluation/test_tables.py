from __future__ import annotations

import math

from captioner.evaluation.tables import Table, json_text, number, without_nan


def test_columns_are_aligned() -> None:
    rows = [["", "words", "share"], ["all", "12", number(0.5, ".1%")], ["a class", "3", number(math.nan)]]
    assert Table(rows).to_text().splitlines() == [
        "         words  share",
        "all         12  50.0%",
        "a class      3      -",
    ]


def test_columns_are_aligned_at_the_end_of_numbers() -> None:
    table = Table((("", "wide head", "x"), ("a", "1.0 ±2.5*", "10"), ("bb", "100.0", "-")))
    assert table.to_text().splitlines() == ["      wide head   x", "a     1.0 ±2.5*  10", "bb  100.0         -"]


def test_markdown_shows_cells_as_they_are() -> None:
    table = Table((("", "which"), ("a|b", "*runs* "), ("c", "")), wide=(0, 1))
    assert table.to_markdown().splitlines() == [
        "|  | which |",
        "| --- | --- |",
        r"| a\|b | \*runs\* |",
        "| c |  |",
    ]


def test_nan_is_none_wherever_it_is() -> None:
    nested = {"a": math.nan, "b": [1, (2.5, math.nan)], "c": "nan"}
    assert without_nan(nested) == {"a": None, "b": [1, [2.5, None]], "c": "nan"}


def test_json_is_for_people_too() -> None:
    assert json_text({"name": "café", "values": [1]}) == '{\n  "name": "café",\n  "values": [\n    1\n  ]\n}\n'
