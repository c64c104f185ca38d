"""Numbers, dates and times as people write them in text. Does not import TensorFlow."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from psrun.errors import Problem

_WORDS = ("na", "n/a", "#n/a", "n.a.", "nan", "null", "none", "nil", "missing", "unknown", "<na>", "nat", "#null!")
_SIGNS = ("?", "-", "--", "---", ".", "..", "\u2013", "\u2014", r"\N")
# Missing values in a column of numbers or dates. In a column of words, NA may be Namibia, and None a class.
MISSING = (*(case(word) for word in _WORDS for case in (str.lower, str.upper, str.capitalize)), "NaN", "NaT", *_SIGNS)
UNSURE = {"none", "missing", "unknown", "nil", "-", "."}  # among words, a class as likely as a missing value

_BLANK = "[\\s\u00a0\u202f]"
_MINUS = "\u2212"  # as spreadsheets write it
_NUMERIC = f"[0-9][eE][+-]?[0-9]+|[0-9.,'\u2019()+{_MINUS}-]|{_BLANK}"  # the parts of numbers without units
_NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_INTEGER = r"^[+-]?[0-9]+$"
_LEADING_ZERO = r"^[+-]?0[0-9]+$"
_UNIT = (
    r"(?:(?:US|A|C|R|NZ|HK)?\$|€|£|¥|₹|₩|₽|USD|EUR|GBP|CHF|JPY|CNY|INR|BRL|CAD|AUD|SEK|NOK|DKK|PLN|kr\.?|zł|Rs\.?|%|‰)"
)
# What all numbers with a mark or a unit fit, and few words: RE2 compiles the patterns of these in milliseconds.
_MAY_BE_MARKED = (
    f"^(?:[^0-9A-Za-z]|{_UNIT})*[0-9](?:[0-9.,'\u2019]|{_BLANK})*(?:[eE][+-]?[0-9]{{1,2}})?(?:[^0-9A-Za-z]|{_UNIT})*$"
)
_INT64 = 2**63

_MONTHS = (
    "jan(?:uary)?", "feb(?:ruary)?", "mar(?:ch)?", "apr(?:il)?", "may", "june?", "july?", "aug(?:ust)?",
    "sep(?:t(?:ember)?)?", "oct(?:ober)?", "nov(?:ember)?", "dec(?:ember)?",
)  # fmt: skip
_MONTH = f"(?i:{'|'.join(_MONTHS)})"
_WEEKDAY = "(?i:(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?)"
_DIRECTIVES = {
    "Y": "(?P<Y>[0-9]{4})", "y": "(?P<y>[0-9]{2})", "m": "(?P<m>[0-9]{1,2})", "d": "(?P<d>[0-9]{1,2})",
    "b": rf"(?P<b>{_MONTH})\.?", "a": rf"{_WEEKDAY}\.?", "H": "(?P<H>[0-9]{1,2})", "I": "(?P<I>[0-9]{1,2})",
    "M": "(?P<M>[0-9]{2})", "S": "(?P<S>[0-9]{2})", "f": "(?P<f>[0-9]{1,9})", "p": r"(?P<p>(?i:[ap]\.?m\.?))",
    "z": "(?P<z>Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)", "%": "%",
}  # fmt: skip
_ALIASES = {"B": "%b", "h": "%b", "A": "%a", "e": "%d", "F": "%Y-%m-%d", "D": "%m/%d/%y", "T": "%H:%M:%S", "R": "%H:%M"}
_ISO = (
    "(?P<Y>[0-9]{4})-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})"
    "(?:[T ](?P<H>[0-9]{2})(?::(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2})(?:[.,](?P<f>[0-9]{1,9}))?)?)?"
    " ?(?P<z>Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)

# What looks like a date or a time of the day, in whatever format.
_DATE_LIKE = "|".join(
    [
        r"[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}(?:[T ,].*)?",
        rf"(?:{_WEEKDAY}[., ]+)?[0-9]{{1,2}}[. /-]+{_MONTH}[. /,-]+[0-9]{{2,4}}\b.*",
        rf"(?:{_WEEKDAY}[., ]+)?{_MONTH}[. /-]+[0-9]{{1,2}}[, /-]+[0-9]{{2,4}}\b.*",
        rf"{_WEEKDAY}[., ]+{_MONTH}[ ]+[0-9]{{1,2}} [0-9:]+ .*",
        rf"{_MONTH}[. /-]+[0-9]{{2,4}}",
        r"[0-9]{4}[./-][0-9]{1,2}",
        r"[0-9]{8}T[0-9]{4,6}.*",
        r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?: ?(?i:[ap]\.?m\.?))?",
    ]
)
# How all of these begin, and how dates of ISO 8601 do: short patterns, which rule out most words.
_MAY_BE_DATE = rf"^(?:[0-9]{{1,8}}[./:T -]|{_WEEKDAY}|{_MONTH})"
_MAY_BE_ISO = "^[0-9]{4}-[0-9]{2}-"
ISO = "iso"  # the time format of ISO 8601, by name
PARTS = ("days", "month", "weekday", "hour")
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Notation:
    """How the numbers and times in the texts of a data set are written.

    Attributes:
      decimal_mark: "." or ","; None: text is a number only if it is a plain one.
      time_format: as strptime takes it; None: text is a time only if it is ISO 8601.
    """

    decimal_mark: str | None = None
    time_format: str | None = None

    @property
    def has_days(self) -> bool:
        """Whether the time format has year, month and day, so that integers such as 20210131 may be dates."""
        directives = set(re.findall("%(.)", self.time_format or ""))
        return {"Y", "m", "d"} <= directives


NO_NOTATION = Notation()


def problems(decimal_mark: str | None, time_format: str | None) -> Iterator[Problem]:
    """Problems of the keys of a data set's notation."""
    if decimal_mark not in (None, ".", ","):
        yield Problem("data.decimal_mark", f"is {decimal_mark!r}, must be . or , or null")
    if time_format is not None:
        try:
            _expression(time_format)
        except ValueError as error:
            yield Problem("data.time_format", str(error))


def is_missing(text: pa.StringArray) -> pa.BooleanArray:
    """Whether each text is null, blank or one of `MISSING`: a missing value, where the others are numbers or dates."""
    trimmed = pc.utf8_trim_whitespace(text)
    marked = pc.is_in(trimmed, value_set=pa.array(["", *MISSING], text.type))
    return pc.or_(marked, pc.is_null(text))


def numbers(text: pa.StringArray, decimal_mark: str | None = None, unit: str = "") -> pa.DoubleArray:
    """The numbers in texts; null for other text, also for infinity, NaN and what no double can hold.

    Args:
      decimal_mark: "." or ",", for numbers that may have separators of thousands, or parentheses for a minus. None: as
        Python's `float` reads them, but without underscores.
      unit: with a decimal mark, what each number has in front or behind, such as $ or %. It does not change the
        number: 12 % is 12.
    """
    if decimal_mark is not None:
        plain = numbers(text) if decimal_mark == "." and not unit else None
        if plain is not None and plain.null_count == text.null_count:
            return plain
        marked = _marked_numbers(text, decimal_mark, unit)
        return marked if plain is None else pc.coalesce(plain, marked)
    try:
        values = pc.cast(text, pa.float64())
    except pa.ArrowInvalid:
        trimmed = pc.utf8_trim_whitespace(text)
        plain = pc.if_else(pc.match_substring_regex(trimmed, _NUMBER), trimmed, None)
        values = pc.cast(plain, pa.float64())
    finite = pc.is_finite(values)
    return values if pc.all(finite).as_py() is not False else pc.if_else(finite, values, None)


@functools.cache
def _marked(decimal_mark: str, unit: str) -> str:
    """A regular expression of a number with the unit `unit`; empty for no unit."""
    mark = re.escape(decimal_mark)
    thousands = {".": ",", ",": r"\."}[decimal_mark]
    exponent = "(?:[eE][+-]?[0-9]{1,2})?"
    groups = [rf"[1-9][0-9]{{0,2}}(?:{each}[0-9]{{3}})+" for each in (thousands, _BLANK, "['\u2019]")]
    groups.append(rf"[1-9][0-9]?(?:{thousands}[0-9]{{2}})+{thousands}[0-9]{{3}}")  # 12,34,567, as in India
    grouped = rf"(?:{'|'.join(groups)})(?:{mark}[0-9]*)?"
    number = rf"(?:{grouped}|[0-9]+(?:{mark}[0-9]*)?{exponent}|{mark}[0-9]+{exponent})"
    sign = f"[+{_MINUS}-]"
    minus = f"[{_MINUS}-]"
    if not unit:
        forms = [f"{sign}?{_BLANK}*{number}", f"{number}{_BLANK}*{minus}", rf"\({_BLANK}*{number}{_BLANK}*\)"]
    else:
        front = f"{unit}{_BLANK}*"
        behind = f"{_BLANK}*{unit}"
        forms = [
            f"{sign}?{_BLANK}*{front}{number}",
            f"{front}{sign}?{_BLANK}*{number}",
            f"{front}{number}{_BLANK}*{minus}",
            f"{sign}?{_BLANK}*{number}{behind}",
            f"{number}{_BLANK}*{minus}{behind}",
            rf"\({_BLANK}*(?:{front}{number}|{number}{behind}){_BLANK}*\)",
            rf"{front}\({_BLANK}*{number}{_BLANK}*\)",
            rf"\({_BLANK}*{number}{_BLANK}*\){behind}",
        ]
    return f"^(?:{'|'.join(forms)})$"


def _marked_numbers(text: pa.StringArray, decimal_mark: str, unit: str) -> pa.DoubleArray:
    trimmed = pc.utf8_trim_whitespace(text)
    sign = re.escape(unit) + (r"\.?" if unit.isalpha() else "")
    fits = pc.match_substring_regex(trimmed, _marked(decimal_mark, sign))
    bare = pc.replace_substring_regex(trimmed, sign, "") if unit else trimmed
    exponent = pc.match_substring_regex(bare, "[0-9][eE][+-]?[0-9]")
    mantissa = pc.replace_substring_regex(bare, "[eE].*$", "")
    negative = pc.match_substring_regex(mantissa, rf"[({_MINUS}-]")
    digits = pc.replace_substring_regex(mantissa, rf"[^0-9{re.escape(decimal_mark)}]", "")
    digits = pc.replace_substring(digits, decimal_mark, ".")
    power = pc.replace_substring_regex(bare, "^[^eE]*", "")
    digits = pc.if_else(exponent, pc.binary_join_element_wise(digits, power, ""), digits)
    values = numbers(pc.if_else(fits, digits, None))
    return pc.if_else(negative, pc.negate(values), values)


def units(text: pa.StringArray, decimal_mark: str) -> pa.StringArray:
    """The currency, percent or per mille sign of each number, empty for none; null for text that is no number.

    Args:
      decimal_mark: "." or ","; separators of thousands and parentheses for a minus are read with it.
    """
    known = numbers(text) if decimal_mark == "." else integers(text)
    if known.null_count == text.null_count:  # no need to look closer
        return pc.if_else(pc.is_valid(text), "", None)
    trimmed = pc.utf8_trim_whitespace(text)
    if not _any_matches(trimmed.filter(pc.is_null(known)), _MAY_BE_MARKED):
        return pc.if_else(pc.is_valid(known), "", None)
    plain = pc.or_(pc.is_valid(known), pc.match_substring_regex(trimmed, _marked(decimal_mark, "")))
    fits = pc.or_(plain, pc.match_substring_regex(trimmed, _marked(decimal_mark, _UNIT)))
    found = pc.replace_substring_regex(trimmed, _NUMERIC, "")
    return pc.if_else(fits, pc.if_else(plain, "", found), None)


def looks_like_time(text: pa.StringArray) -> pa.BooleanArray:
    """Whether each text looks like a date or a time of the day, in whatever format."""
    trimmed = pc.utf8_trim_whitespace(text)
    may_be = pc.match_substring_regex(trimmed, _MAY_BE_DATE)
    if not pc.any(may_be).as_py():
        return may_be
    return pc.match_substring_regex(trimmed, f"^(?:{_DATE_LIKE})$")


def _any_matches(text: pa.StringArray, pattern: str) -> bool:
    return pc.any(pc.match_substring_regex(text, pattern)).as_py() is True


def integers(text: pa.StringArray) -> pa.Int64Array:
    """The integers in texts; null for other text and beyond int64. Hexadecimal, which Arrow would read, is not one."""
    try:
        values = pc.cast(text, pa.int64())
    except pa.ArrowInvalid:
        return _integers(pc.utf8_trim_whitespace(text))
    hexadecimal = pc.any(pc.match_substring(text, "x")).as_py() or pc.any(pc.match_substring(text, "X")).as_py()
    return _integers(text) if hexadecimal else values


def _integers(trimmed: pa.StringArray) -> pa.Int64Array:
    whole = pc.if_else(is_whole(trimmed), trimmed, None)
    negative = pc.starts_with(whole, "-")
    digits = pc.utf8_ltrim(whole, "+-0")
    digits = pc.if_else(pc.equal(pc.utf8_length(digits), 0), "0", digits)
    size = pc.cast(pc.if_else(pc.less_equal(pc.utf8_length(digits), 19), digits, None), pa.uint64())
    limit = pc.if_else(negative, pa.scalar(_INT64, pa.uint64()), pa.scalar(_INT64 - 1, pa.uint64()))
    size = pc.cast(pc.if_else(pc.less_equal(size, limit), size, None), pa.int64(), safe=False)
    return pc.if_else(negative, pc.negate(size), size)  # the least int64 is its own negative


def is_whole(trimmed: pa.StringArray) -> pa.BooleanArray:
    """Whether each text is a decimal integer, of any size; null for null."""
    return pc.match_substring_regex(trimmed, _INTEGER)


def has_leading_zero(trimmed: pa.StringArray) -> pa.BooleanArray:
    """Whether each text is an integer with a leading zero, as codes have: 007, but not 0."""
    return pc.match_substring_regex(trimmed, _LEADING_ZERO)


def times(text: pa.StringArray, time_format: str | None = None) -> pa.TimestampArray:
    """The dates and times in texts, in microseconds; null for other text and days that no calendar has.

    Times with an offset become UTC, others stay as they are; times without a date are of 1970-01-01.

    Args:
      time_format: as strptime takes it, with English names of months. None and "iso": ISO 8601.

    Raises:
      ValueError: the format has a directive that is not supported.
    """
    if time_format in (None, ISO):
        try:
            return pc.cast(text, pa.timestamp("us"))
        except pa.ArrowInvalid:  # not all of them, or some with an offset
            pass
    trimmed = pc.utf8_trim_whitespace(text)
    if time_format in (None, ISO) and not _any_matches(trimmed, _MAY_BE_ISO):
        return pa.nulls(len(text), pa.timestamp("us"))
    return _timestamps(pc.extract_regex(trimmed, rf"^{_expression(time_format)}$"))


@functools.cache
def _expression(time_format: str | None) -> str:
    return _ISO if time_format in (None, ISO) else "".join(_expressions(time_format))


def _expressions(time_format: str) -> Iterator[str]:
    for directive, blank, other in re.findall(r"%(.?)|(\s+)|([^%\s])", time_format):
        if blank:
            yield r"\s+"
        elif other:
            yield re.escape(other)
        elif directive in _ALIASES:
            yield from _expressions(_ALIASES[directive])
        elif directive in _DIRECTIVES:
            yield _DIRECTIVES[directive]
        else:
            known = " ".join(f"%{each}" for each in [*_DIRECTIVES, *_ALIASES])
            raise ValueError(f"{time_format!r} has %{directive}, which is not supported; use {known}")


def _timestamps(found: pa.StructArray) -> pa.TimestampArray:
    """Of the parts that were found. Arrow's strptime takes February 30 for March 2, and 98 for the year 98."""
    names = [field.name for field in found.type]
    valid = pc.is_valid(found).to_numpy(zero_copy_only=False)

    def part(name: str, otherwise: int) -> np.ndarray:
        if name not in names:
            return np.full(len(found), otherwise)
        digits = pc.struct_field(found, name)
        digits = pc.if_else(pc.equal(digits, ""), None, digits)
        return pc.fill_null(pc.cast(digits, pa.int64()), otherwise).to_numpy()

    year = part("Y", 1970)
    if "y" in names:
        short = part("y", 70)
        year = short + np.where(short < 69, 2000, 1900)
    month = _month_numbers(pc.struct_field(found, "b")) if "b" in names else part("m", 1)
    day = part("d", 1)
    hour = part("H", 0)
    if "I" in names:
        twelve = part("I", 12)
        valid &= (twelve >= 1) & (twelve <= 12)
        hour = twelve % 12
    if "p" in names:
        afternoon = pc.match_substring_regex(pc.struct_field(found, "p"), "^[pP]")
        hour = hour + 12 * pc.fill_null(afternoon, False).to_numpy(zero_copy_only=False)
    minute = part("M", 0)
    second = part("S", 0)
    valid &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    valid &= (hour < 24) & (minute < 60) & (second < 60)
    first = (np.where(valid, year, 1970) - 1970).astype("datetime64[Y]").astype("datetime64[M]")
    first = first + (np.where(valid, month, 1) - 1)
    valid &= day <= ((first + 1).astype("datetime64[D]") - first.astype("datetime64[D]")).astype(np.int64)
    days = first.astype("datetime64[D]").astype(np.int64) + day - 1
    micros = ((days * 24 + hour) * 60 + minute) * 60 + second
    micros = micros * 1_000_000 + _microseconds(found, names)
    micros = micros - _offset_minutes(found, names) * 60_000_000
    return pa.array(micros, pa.timestamp("us"), mask=~valid)


def _month_numbers(names: pa.StringArray) -> np.ndarray:
    first = pc.utf8_slice_codeunits(pc.utf8_lower(names), 0, 3)
    places = pc.index_in(first, value_set=pa.array([month[:3] for month in _MONTHS], first.type))
    return pc.fill_null(places, 0).to_numpy() + 1


def _microseconds(found: pa.StructArray, names: list[str]) -> np.ndarray | int:
    if "f" not in names:
        return 0
    padded = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.struct_field(found, "f"), 6, "0"), 0, 6)
    return pc.fill_null(pc.cast(padded, pa.int64()), 0).to_numpy()


def _offset_minutes(found: pa.StructArray, names: list[str]) -> np.ndarray | int:
    if "z" not in names:
        return 0
    zone = pc.replace_substring(pc.struct_field(found, "z"), ":", "")
    digits = pc.utf8_rpad(pc.if_else(pc.match_substring_regex(zone, "^[+-]"), pc.utf8_ltrim(zone, "+-"), "0"), 4, "0")
    number = pc.fill_null(pc.cast(digits, pa.int64()), 0).to_numpy()
    minutes = number // 100 * 60 + number % 100
    return np.where(pc.fill_null(pc.starts_with(zone, "-"), False).to_numpy(zero_copy_only=False), -minutes, minutes)


def nanoseconds(text: pa.StringArray, time_format: str | None = None) -> np.ndarray:
    """The nanoseconds beyond the microseconds of `times`, from 0 to 999; 0 for other text."""
    found = pc.extract_regex(pc.utf8_trim_whitespace(text), rf"^{_expression(time_format)}$")
    if "f" not in [field.name for field in found.type]:
        return np.zeros(len(text), np.int64)
    padded = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.struct_field(found, "f"), 9, "0"), 6, 9)
    return pc.fill_null(pc.cast(padded, pa.int64()), 0).to_numpy()


def instants(values: pa.Array, time_format: str | None = None) -> pa.TimestampArray:
    """Dates, timestamps, times of the day and texts as naive microseconds, of UTC where there is a time zone.

    Args:
      time_format: of texts, and of integers such as 20210131.
    """
    kind = values.type
    if pa.types.is_integer(kind):
        values = pc.cast(values, pa.string())
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return times(values, time_format)
    if pa.types.is_time(kind):
        since_midnight = pc.cast(pc.cast(values, pa.time64("ns")), pa.int64())
        return pc.cast(pc.divide(since_midnight, 1000), pa.timestamp("us"))
    return pc.cast(pc.cast(values, pa.timestamp("us", getattr(kind, "tz", None)), safe=False), pa.timestamp("us"))


def part(timestamps: pa.TimestampArray, which: str) -> pa.Array:
    """A number of each time: `days` since 1970-01-01 with the time as fraction, as doubles; month 1 to 12, weekday from
    0 (Monday) to 6, or hour 0 to 23, as int64."""
    if which == "days":
        return pc.divide(pc.cast(pc.cast(timestamps, pa.int64()), pa.float64(), safe=False), float(_DAY_US))
    functions = {"month": pc.month, "weekday": pc.day_of_week, "hour": pc.hour}
    return pc.cast(functions[which](timestamps), pa.int64())
