"""Numbers that a decimal comma reads as others: what in the files makes a run ask, and what does not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from psrun.errors import ConfigError
from psrun.tables import decimal_marks
from psrun.tables.profiles import Profiler
from psrun.tables.rows import Layout

TWO_WAYS = ["981", "12.775"]
# Other columns, the delimiter, and what indicates a decimal comma; None: nothing does.
CASES: dict[str, tuple[dict[str, list[str]], str, str | None]] = {
    "nothing": ({}, ",", None),
    "words": ({"w": ["a", "b,c"]}, ",", None),
    "a decimal comma": ({"w": ["4,8", "63,7"]}, ",", "'4,8' in column 'w'"),
    "a decimal comma with currency": ({"w": ["4,80 €", "63,70 €"]}, ",", "'4,80 €' in column 'w'"),
    "thousands of both kinds": ({"w": ["1.234,50"]}, ",", "'1.234,50' in column 'w'"),
    "several points": ({"w": ["1.234.567"]}, ",", "'1.234.567' in column 'w'"),
    "a leading zero": ({"w": ["0,5", "about 3"]}, ",", "'0,5' in column 'w'"),
    "a comma that may separate thousands": ({"w": ["3,385"]}, ",", None),
    "a decimal comma beside a word": ({"w": [*(f"4,{n}" for n in range(20)), "n.v."]}, ",", "'4,0' in column 'w'"),
    "the delimiter": ({"w": ["a"]}, ";", "the delimiter ;"),
    "the delimiter against a point": ({"w": ["0.5", "1.25"]}, ";", None),
    "the delimiter against thousands": ({"w": ["1,250.5"]}, ";", None),
    "a comma and a point": ({"w": ["4,8"], "v": ["0.5"]}, ",", "'4,8' in column 'w' indicates a decimal comma, "),
    "a tab": ({"w": ["a"]}, "\t", None),
}


def profiles(columns: dict[str, list[str]]) -> dict:
    found = {}
    for name, values in columns.items():
        profiler = Profiler(name)
        profiler.add(pa.array(values))
        found[name] = profiler.profile()
    return found


@pytest.mark.parametrize(("others", "delimiter", "evidence"), CASES.values(), ids=CASES)
def test_two_readings_end_with_both_and_the_evidence(others, delimiter, evidence):
    looked = profiles({"x": TWO_WAYS, **others})
    layout = Layout("csv", delimiter)
    decimal_marks.check(looked, [name for name in looked if name != "x"], layout)  # nobody reads it
    if evidence is None:
        decimal_marks.check(looked, ["x"], layout)
        return
    with pytest.raises(ConfigError) as caught:
        decimal_marks.check(looked, ["x"], layout)
    (problem,) = caught.value.problems
    assert problem.key == "data.decimal_mark"
    assert "12.775 with data.decimal_mark=. and 12775 with 'data.decimal_mark=\",\"'" in problem.message
    assert evidence in problem.message


@pytest.mark.parametrize(
    "values", [["981", "982"], ["0.775"], ["12.77"], ["12.775", "3.5"], ["1.5e3"], ["a", "12.775"]]
)
def test_numbers_of_one_reading_never_ask(values):
    decimal_marks.check(profiles({"x": values, "w": ["4,8"]}), ["x"], Layout("csv", ";"))


THOUSANDS = [f"{n}.775" for n in range(1, 20)]


@pytest.mark.parametrize(
    ("values", "asks"),
    [
        ([*THOUSANDS, "981"], True),
        ([*THOUSANDS, "-981", "0"], True),
        ([*THOUSANDS, "0"], False),  # as some write nothing at all
        ([*THOUSANDS, "981", "1500"], False),
        ([*THOUSANDS, "981", "3.5"], False),
        (THOUSANDS, False),
        (["12.775", "981"], False),  # too few: may be chance
    ],
)
def test_points_only_where_thousands_begin_ask(values, asks):
    looked = profiles({"x": values})
    if not asks:
        decimal_marks.check(looked, ["x"], Layout("csv"))
        return
    with pytest.raises(ConfigError, match=r"'1\.775' is 1\.775 with .* and 1775 with .*981' beside it"):
        decimal_marks.check(looked, ["x"], Layout("csv"))
