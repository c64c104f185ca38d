"""Numbers, dates and times in text, each case with its value."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrun.tables import notations


def text(*values: str | None) -> pa.StringArray:
    return pa.array(values, pa.string())


def micro(value: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(value)


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("1", 1), ("-2.5", -2.5), ("+5", 5), (" 12 ", 12), ("5.", 5), (".5", 0.5), ("1e5", 1e5), ("1E-3", 1e-3),
        ("007", 7),
        ("1e-400", 0), ("1e400", None), ("inf", None), ("-Infinity", None), ("nan", None), ("0x1F", None),
        ("1_000", None),
        ("1,5", None), ("$5", None), ("12 %", None), ("", None), (" ", None), ("NA", None), ("1 2", None), (None, None),
    ],
)  # fmt: skip
def test_plain_numbers(written, number):
    for others in ((), ("3.25",), ("word",)):  # alone, beside a number: one cast; beside a word: by value
        assert notations.numbers(text(written, *others))[0].as_py() == number


# One table of amounts in the notations of different programs: 1234.5, -12, 0.25 and 1000000.
AMOUNTS = [1234.5, -12, 0.25, 1_000_000]
NOTATIONS: dict[str, tuple[str, str, list[str]]] = {
    "plain": (".", "", ["1234.5", "-12", "0.25", "1e6"]),
    "decimal comma": (",", "", ["1234,5", "-12", "0,25", "1000000"]),
    "thousands of the US": (".", "", ["1,234.5", "-12", "0.25", "1,000,000"]),
    "thousands of India": (".", "", ["1,234.5", "-12", ".25", "10,00,000"]),
    "thousands of Germany": (",", "", ["1.234,5", "-12", "0,25", "1.000.000"]),
    "blanks": (",", "", ["1\u202f234,5", "-12", "0,25", "1 000\u00a0000"]),
    "apostrophes": (".", "", ["1'234.5", "-12", "0.25", "1\u2019000\u2019000"]),
    "currency in front": (".", "$", ["$1,234.50", "-$12", "$ 0.25", "$1,000,000"]),
    "currency behind": (",", "€", ["1.234,50 €", "-12€", "0,25 €", "1.000.000,00 €"]),
    "code of a currency": (".", "USD", ["USD 1,234.50", "-USD 12", "0.25 USD", "USD 1000000"]),
    "abbreviation": (".", "Rs", ["Rs. 1,234.50", "Rs -12", "Rs 0.25", "Rs.10,00,000"]),
    "percent": (".", "%", ["1,234.5 %", "-12%", "0.25%", "1000000%"]),
    "parentheses": (".", "", ["1,234.5", "(12)", "0.25", "1,000,000.00"]),
    "currency in parentheses": (".", "$", ["$1,234.50", "($12.00)", "$0.25", "$1,000,000"]),
    "minus of spreadsheets": (".", "", ["1,234.5", "\u221212", "0.25", "1,000,000"]),
    "minus behind": (",", "", ["1.234,50", "12-", "0,25", "1.000.000"]),
    "a unit that nobody else knows": (".", "km", ["1,234.5 km", "-12 km", "0.25km", "km 1000000"]),
}


@pytest.mark.parametrize(("mark", "unit", "written"), NOTATIONS.values(), ids=NOTATIONS)
def test_amounts_in_every_notation(mark, unit, written):
    assert notations.numbers(text(*written, None, "x"), mark, unit).to_pylist() == [*AMOUNTS, None, None]
    if unit != "km":
        assert notations.units(text(*written, None, "x"), mark).to_pylist() == [unit] * 4 + [None] * 2
    others = notations.numbers(text(*written), mark, "%" if unit != "%" else "$").to_pylist()
    assert others == [None] * 4  # another unit, or none where one is expected


@pytest.mark.parametrize(
    ("written", "mark"),
    [
        ("1,52", "."), ("1.52", ","), ("1,521.00", ","), ("0,521", "."), ("0.521", ","), ("01,521", "."),
        ("1,521,00", "."), ("1521,000", "."), ("1,2,3", "."), ("1 234 56", ","), ("1,234 567", "."), ("$", "."),
        ("a 5", "."), ("5 km", "."), ("1-2", "."), ("--5", "."), ("(-5)", "."), ("$5 €", "."), ("$$5", "."),
        ("0x1F", "."), ("inf", "."), ("nan", "."), ("1e400", "."), ("1_000", "."), ("1.234e5", ","), ("", ","),
    ],
)  # fmt: skip
def test_what_is_no_number_with_a_decimal_mark(written, mark):
    assert notations.units(text(written, "5"), mark).to_pylist() == [None, ""]
    assert notations.numbers(text(written, "5"), mark).to_pylist() == [None, 5]


@pytest.mark.parametrize(
    ("written", "integer"),
    [
        ("0", 0), ("-7", -7), ("+5", 5), (" 12 ", 12), ("007", 7), ("-007", -7), ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)), ("9223372036854775808", None), ("99999999999999999999999", None),
        ("9007199254740993", 2**53 + 1), ("0x1F", None), ("0XFFFFFFFFFFFFFFFF", None), ("5.0", None), ("1e3", None),
        ("", None), ("NA", None), ("-", None), (None, None), ("0000000000000000000000005", 5),
    ],
)  # fmt: skip
def test_integers(written, integer):
    for others in ((), ("3",), ("word",)):
        assert notations.integers(text(written, *others))[0].as_py() == integer


any_number = settings(deadline=None, derandomize=True, max_examples=60)
UNITS = {"{}": "", "${}": "$", "€ {}": "€", "{} EUR": "EUR", "{} %": "%", "{}‰": "‰", "Rs. {}": "Rs"}
SEPARATORS = {".": (",", "\u00a0", " ", "'"), ",": (".", " ", "'")}


@any_number
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_what_python_writes_is_read(number, integer):
    assert notations.numbers(text(repr(number), f" {integer} ")).to_pylist() == [number, float(integer)]
    fits = -(2**63) <= integer < 2**63
    assert notations.integers(text(f" {integer} ", f"{integer:+}", "x")).to_pylist() == [
        *[integer if fits else None] * 2,
        None,
    ]


@any_number
@given(st.integers(-(10**13), 10**13), st.sampled_from(list(UNITS)), st.sampled_from(".,"), st.data())
def test_separators_and_signs_do_not_change_a_number(cents, currency, mark, data):
    separator = data.draw(st.sampled_from(SEPARATORS[mark]))
    digits = f"{abs(cents) / 100:,.2f}".replace(",", "_").replace(".", mark).replace("_", separator)
    written = currency.format(digits)
    expected = [abs(cents) / 100, -abs(cents) / 100, -abs(cents) / 100]
    texts = text(written, f"-{written}", f"({written})")
    assert notations.units(texts, mark).to_pylist() == [UNITS[currency]] * 3
    assert notations.numbers(texts, mark, UNITS[currency]).to_pylist() == expected


@pytest.mark.parametrize(
    "marker",
    [
        "", " ", "NA", "N/A", "#N/A", "n/a", "NULL", "null", "NaN", "nan", "None", "none", "?", "-", "--", ".", "<NA>",
        "NaT", "missing", "NAN",
    ],
)  # fmt: skip
def test_missing_values(marker):
    written = text(marker, f" {marker} ", None, "x", "0", "-1", "no")
    assert notations.is_missing(written).to_pylist() == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    ("written", "time_format", "time"),
    [
        ("2021-01-31", None, "2021-01-31"), ("2021-01-31", "iso", "2021-01-31"),
        ("2021-01-31 10:20", None, "2021-01-31 10:20"),
        ("2021-01-31T10:20:30.5", None, "2021-01-31 10:20:30.500"), ("2021-01-31T10:20Z", None, "2021-01-31 10:20"),
        ("2021-01-31T10:20:30+01:00", None, "2021-01-31 09:20:30"),
        ("2021-01-01 00:30 -0530", None, "2021-01-01 06:00"),
        ("2021-01-31T10:20:30.123456789Z", None, "2021-01-31 10:20:30.123456"), ("2021-02-30", None, None),
        ("2021-13-01", None, None), ("2021-01-31 24:00", None, None), ("1899-12-31", None, "1899-12-31"),
        ("2021-1-1", None, None), ("01/31/2021", None, None), ("", None, None), (None, None, None),
        ("01/31/2021", "%m/%d/%Y", "2021-01-31"), ("1/2/2021", "%m/%d/%Y", "2021-01-02"),
        ("2/30/2021", "%m/%d/%Y", None),
        ("2/29/2020", "%m/%d/%Y", "2020-02-29"), ("1/2/98", "%m/%d/%Y", None), ("1/2/98", "%m/%d/%y", "1998-01-02"),
        ("1/2/15", "%d/%m/%y", "2015-02-01"), ("31.01.2021 5:06", "%d.%m.%Y %H:%M", "2021-01-31 05:06"),
        ("31-Jan-2021", "%d-%b-%Y", "2021-01-31"), ("Sept 3, 2021", "%b %d, %Y", "2021-09-03"),
        ("march 3 2021", "%B %d %Y", "2021-03-03"), ("marketing 3 2021", "%B %d %Y", None),
        ("1/2/2021 12:05 AM", "%m/%d/%Y %I:%M %p", "2021-01-02 00:05"),
        ("1/2/2021 12:05 p.m.", "%m/%d/%Y %I:%M %p", "2021-01-02 12:05"),
        ("1/2/2021 13:05 PM", "%m/%d/%Y %I:%M %p", None),
        ("20210131", "%Y%m%d", "2021-01-31"), ("2021-01", "%Y-%m", "2021-01-01"),
        ("23:45", "%H:%M", "1970-01-01 23:45"),
        ("Mon Jan  4 10:00:00 2021", "%a %b %d %H:%M:%S %Y", "2021-01-04 10:00"),
        ("10/Oct/2000:13:55:36 -0700", "%d/%b/%Y:%H:%M:%S %z", "2000-10-10 20:55:36"),
    ],
)  # fmt: skip
def test_times(written, time_format, time):
    for others in ((), ("2020-05-05",), ("word",)):
        got = notations.times(text(written, *others), time_format)
        assert got.type == pa.timestamp("us")
        assert got[0].as_py() == (None if time is None else micro(time))


def test_unknown_directives_are_named():
    with pytest.raises(ValueError, match="'%Y-%Q' has %Q, which is not supported; use %Y"):
        notations.times(text("2021"), "%Y-%Q")


def test_parts_of_times():
    times = pa.array([micro("2021-01-31 18:00"), None, micro("1969-12-31 00:00")], pa.timestamp("us"))
    parts = {which: notations.part(times, which) for which in notations.PARTS}
    assert {which: values.to_pylist() for which, values in parts.items()} == {
        "days": [18658.75, None, -1], "month": [1, None, 12], "weekday": [6, None, 2], "hour": [18, None, 0],
    }  # fmt: skip
    assert [str(each.type) for each in parts.values()] == ["double", "int64", "int64", "int64"]


@pytest.mark.parametrize(
    ("values", "time_format", "instant"),
    [
        (pa.array([datetime.date(2021, 1, 31)], pa.date32()), None, "2021-01-31"),
        (pa.array([micro("2021-01-31")], pa.timestamp("ns")), None, "2021-01-31"),
        (pa.array([micro("2021-01-31")], pa.timestamp("s", "America/New_York")), None, "2021-01-31"),
        (pa.array(["2021-01-31"]), None, "2021-01-31"),
        (pa.array([20210131]), "%Y%m%d", "2021-01-31"),
        (pa.array([datetime.time(6, 30)], pa.time32("s")), None, "1970-01-01 06:30"),
        (pa.array([datetime.time(6, 30)], pa.time64("ns")), None, "1970-01-01 06:30"),
    ],
)
def test_instants_of_arrow_types(values, time_format, instant):
    assert notations.instants(values, time_format).to_pylist() == [micro(instant)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("31.12.2023", True), ("1/2/21", True), ("2021/01/31 10:20", True), ("Mon Jan  4 10:00:00 2021", True),
        ("10:30", True), ("10:30 pm", True), ("Jan-2021", True), ("3 May 2021", True), ("May 3, 2021", True),
        ("2021-01", True), ("10/Oct/2000:13:55:36 -0700", True), ("20210131T1020", True), ("2021-1-1", True),
        ("10-19", False), ("1.2", False), ("may", False), ("1.2.3.4", False), ("555-1234", False), ("20210131", False),
        ("march 5 people", False), (None, None),
    ],
)  # fmt: skip
def test_texts_that_look_like_times(written, expected):
    assert notations.looks_like_time(text(written))[0].as_py() == expected


PARTS = [
    "1", "12", "123", "0", "2021", "20210131", "-01-", "2021-03-04", "T10", "12:30", ".", ",", "'", "\u2019", " ",
    "\u00a0", "$", "US$", "HK$", "€", "EUR", "kr.", "Rs", "zł", "%", "‰", "-", "+", "\u2212", "(", ")", "e5", "E-12",
    "/", "T", "Z", "Mon", "monday", "Jan", "january", "am", "w", "\n", "\u017fep",
]  # fmt: skip
LONGEST_PATTERNS = ["1.234,56 €", "(1,234.56 $)", "Mon, 31 Jan 2021 12:30", "2021-01-31 10:20:30Z"]


@given(st.lists(st.sampled_from(PARTS), max_size=7).map("".join))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_short_patterns_rule_out_no_text_that_the_long_ones_fit(written):
    """Beside texts that the long patterns fit, no text is spared them."""
    beside = text(written, *LONGEST_PATTERNS)
    for read in (
        notations.looks_like_time,
        notations.times,
        lambda each: notations.units(each, "."),
        lambda each: notations.units(each, ","),
    ):
        assert read(text(written))[0].as_py() == read(beside)[0].as_py()


def test_words_are_read_without_the_long_patterns(monkeypatch):
    patterns: list[str] = []
    for name in ("match_substring_regex", "extract_regex", "replace_substring_regex"):
        function = getattr(notations.pc, name)

        def counted(values, pattern, *arguments, function=function):
            patterns.append(pattern)
            return function(values, pattern, *arguments)

        monkeypatch.setattr(notations.pc, name, counted)
    words = text("two words", "w852", "5327bac9", "12345678", "Paris", "v1.2")
    assert not any(notations.looks_like_time(words).to_pylist())
    assert notations.times(words).null_count == len(words)
    for mark in (".", ","):
        assert notations.units(words, mark).to_pylist() == [None, None, None, "", None, None]
    assert max(map(len, patterns)) < len(notations._marked(".", ""))
