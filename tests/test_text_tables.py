from __future__ import annotations

import math

from captioner.measures.text_tables import number, text_table, without_nan


def test_columns_are_aligned() -> None:
    table = text_table(["", "words", "share"], [["all", "12", number(0.5, ".1%")], ["a class", "3", number(math.nan)]])
    assert table.splitlines() == [
        "         words  share",
        "all         12  50.0%",
        "a class      3      -",
    ]


def test_nan_is_none_wherever_it_is() -> None:
    nested = {"a": math.nan, "b": [1, (2.5, math.nan)], "c": "nan"}
    assert without_nan(nested) == {"a": None, "b": [1, [2.5, None]], "c": "nan"}
