"""What the values of a column are, found out from its different values: integers, numbers, times, words."""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from psrun.tables import notations
from psrun.tables.notations import NO_NOTATION, Notation

FEW = 256  # different values of a category
LISTED = 100_000  # different values that a profile lists
_ALL_LISTED = 1000  # of more different values, those that occur once are not listed
_FIRST = 100
_SHOWN = 10  # values that fit a reading, or do not
_GROUPED = 10  # different values with a point from which three digits behind each are no chance
_NEARLY = 10  # how many values fit for each that does not, at least, where nearly all do
_SPELLINGS = 10_000  # different values of which several ways to write one are looked for
MARKS = (".", ",")


def content_of(kind: pa.DataType, notation: Notation) -> Content:
    types = pa.types
    if types.is_null(kind):
        return Nothing(is_other=False)
    if types.is_decimal(kind):
        return _Text(NO_NOTATION, text=False)
    if types.is_boolean(kind):
        return _Booleans()
    if types.is_integer(kind):
        return _Numbers(notation)
    if types.is_floating(kind) or types.is_duration(kind):
        return _Numbers(NO_NOTATION)
    if types.is_temporal(kind):
        return _Times()
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    binaries = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    if any(each(kind) for each in (*texts, *binaries)):
        return _Text(notation, text=True)
    return Nothing(is_other=True)


class Content(abc.ABC):
    """What the values of a column are; a class for each family of Arrow's types."""

    def simplified(self, values: pa.Array, counts: pa.Array) -> tuple[pa.Array, np.ndarray]:
        """The different values of a block, without null, as the content takes them, and their counts."""
        if values.null_count:
            present = values.is_valid()
            values = values.filter(present)
            counts = counts.filter(present)
        return values, counts.to_numpy()

    def examine(self, values: pa.Array, counts: np.ndarray) -> None:  # noqa: B027
        """Takes notice of different values, before they are sampled."""

    @abc.abstractmethod
    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        """Attributes of the profile.

        Args:
          values, counts: all different values, or a sample of them.
          factor: the number of different values for each of them.
        """


class Nothing(Content):
    def __init__(self, *, is_other: bool) -> None:
        self._kind = "other" if is_other else "empty"

    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        return {"kind": self._kind}


class _Booleans(Content):
    def simplified(self, values: pa.Array, counts: pa.Array) -> tuple[pa.Array, np.ndarray]:
        values, numbers = super().simplified(values, counts)
        return values.cast(pa.uint8()), numbers

    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        return {"kind": "booleans", "whole": True, **_counted(values, counts, factor, most=2)}


@dataclass
class _Range:
    """The least and the largest value, exact."""

    least: Any = None
    most: Any = None

    def add(self, least: Any, most: Any) -> None:
        if least is not None:
            self.least = least if self.least is None else min(self.least, least)
            self.most = most if self.most is None else max(self.most, most)

    def add_array(self, values: pa.Array) -> None:
        self.add(*pc.min_max(values).as_py().values())


def _are_whole(numbers: pa.Array) -> bool:
    return pc.all(pc.equal(numbers, pc.floor(numbers))).as_py() is not False


class _Numbers(Content):
    """Integers and floats; durations are seconds."""

    def __init__(self, notation: Notation) -> None:
        self._range = _Range()
        self._whole = True
        self._is_integer = False
        self._num_nan = 0
        self._times = _TimeReading(notation.time_format) if notation.has_days else None

    def simplified(self, values: pa.Array, counts: pa.Array) -> tuple[pa.Array, np.ndarray]:
        values, numbers = super().simplified(values, counts)
        if pa.types.is_duration(values.type):
            values = pc.divide(values.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)
        if pa.types.is_floating(values.type):
            values = values.cast(pa.float64())
            is_nan = pc.is_nan(values)
            nan = is_nan.to_numpy(zero_copy_only=False)
            self._num_nan += int(numbers[nan].sum())
            return values.filter(pc.invert(is_nan)), numbers[~nan]
        self._is_integer = True
        return (values if pa.types.is_uint64(values.type) else values.cast(pa.int64())), numbers

    def examine(self, values: pa.Array, counts: np.ndarray) -> None:
        self._range.add_array(values)
        if not self._is_integer:
            self._whole &= _are_whole(values)
        elif self._times is not None:
            self._times.add(values.cast(pa.string()))

    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        missing = {"num_unmarked_missing": self._num_nan}
        if self._times is not None and self._times.fits_all:
            return {**self._times.facts(values, counts, factor), **missing}
        kind = "integers" if self._is_integer else "numbers"
        most = LISTED if self._whole else FEW
        if self._whole and not self._is_integer and len(values) <= LISTED:
            exact = abs(self._range.least or 0) < 2**53 and abs(self._range.most or 0) < 2**53
            values = values.cast(pa.int64()) if exact else values
        counted = _counted(values, counts, factor, most=most)
        return {"kind": kind, "whole": self._whole, **_ranged(self._range, values, counts), **counted, **missing}


class _Times(Content):
    def __init__(self) -> None:
        self._calendar = _Calendar()

    def simplified(self, values: pa.Array, counts: pa.Array) -> tuple[pa.Array, np.ndarray]:
        values, numbers = super().simplified(values, counts)
        return notations.instants(values).cast(pa.int64()), numbers

    def examine(self, values: pa.Array, counts: np.ndarray) -> None:
        self._calendar.add(values.cast(pa.timestamp("us")))

    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        return {"kind": "times", **self._calendar.facts(), **_num_values(counts, factor)}


class _Calendar:
    """The range of times, and how many different months, weekdays, hours and days they have."""

    def __init__(self) -> None:
        self._range = _Range()
        self._seen: dict[str, set[int]] = {"month": set(), "weekday": set(), "hour": set()}
        self._days = set[int]()  # two at most

    def add(self, times: pa.TimestampArray) -> None:
        self._range.add_array(times.cast(pa.int64()))
        for part, seen in self._seen.items():
            seen.update(notations.part(times, part).unique().to_pylist())
        if len(self._days) <= 1:
            self._days.update(times.cast(pa.date32(), safe=False).unique().slice(0, 2).cast(pa.int32()).to_pylist())

    def facts(self) -> dict[str, Any]:
        ends = pa.array([self._range.least, self._range.most]).cast(pa.timestamp("us"))
        least, most = pc.strftime(ends.cast(pa.timestamp("s"), safe=False), "%Y-%m-%d %H:%M:%S").to_pylist()
        keep = 10 if self._seen["hour"] == {0} else 19
        counts = {f"num_{part}s": len(seen) for part, seen in self._seen.items()}
        return {
            "least": least[:keep],
            "most": most[:keep],
            **counts,
            "num_days": len(self._days),
            "examples": (least[:keep],),
        }


class _Reading:
    """One way to read the texts of a column. It gives up when half of the values do not fit.

    Attributes:
      first, odd: the first values that fit, and the first that do not.
    """

    def __init__(self, read: Callable[[pa.StringArray], pa.Array]) -> None:
        self._read = read
        self._num_fitting = 0
        self._num_odd = 0
        self.first: list[str] = []
        self.odd: list[str] = []

    def add(self, texts: pa.StringArray) -> None:
        """Adds different values, without blanks around them and without missing ones."""
        for part in (texts.slice(0, _FIRST), texts.slice(_FIRST)):
            if not len(part) or self._is_hopeless:
                return
            values = self._read(part)
            fits = pc.is_valid(values)
            self._num_fitting += len(values) - values.null_count
            self._num_odd += values.null_count
            if values.null_count:
                odd = part.filter(pc.invert(fits))
                self.odd += odd.slice(0, _SHOWN - len(self.odd)).to_pylist()
                part = part.filter(fits)
                values = values.drop_null()
            if len(part):
                self.first += part.slice(0, _SHOWN - len(self.first)).to_pylist()
                self._take(part, values)

    def _take(self, texts: pa.StringArray, values: pa.Array) -> None:
        """Takes notice of values that fit."""

    @property
    def _is_hopeless(self) -> bool:
        return self._num_odd > max(_FIRST // 2, self._num_fitting)

    @property
    def fits_all(self) -> bool:
        return self._num_fitting > 0 and self._num_odd == 0

    @property
    def fits_nearly(self) -> bool:
        """Whether it fits all values, or all but a few."""
        return self._num_fitting > _NEARLY * self._num_odd


class _IntegerReading(_Reading):
    """Integers of any size.

    Attributes:
      is_code: whether some have a leading zero, as codes have.
    """

    def __init__(self) -> None:
        super().__init__(_whole_texts)
        self.range = _Range()
        self.is_code = False

    def _take(self, texts: pa.StringArray, values: pa.Array) -> None:
        integers = notations.integers(texts)
        self.is_code |= bool(pc.any(notations.has_leading_zero(texts)).as_py())
        self.range.add_array(integers)
        for text in texts.filter(integers.is_null()).to_pylist():  # beyond int64
            self.range.add(int(text), int(text))


def _whole_texts(texts: pa.StringArray) -> pa.StringArray:
    return pc.if_else(notations.is_whole(texts), texts, None)


class _NumberReading(_Reading):
    """Plain numbers."""

    def __init__(self) -> None:
        super().__init__(notations.numbers)
        self.range = _Range()
        self.whole = True

    def _take(self, texts: pa.StringArray, values: pa.Array) -> None:
        self.range.add_array(values)
        self.whole &= _are_whole(values)


class _MarkReading(_Reading):
    """Numbers with a decimal mark, separators of thousands and units.

    Attributes:
      units: the first value of each unit.
      range, whole: of the values of the first unit.
      proof: the first value that has no other reading with the other mark; leading_zero: one such as 0,5.
      other: the first value that the two marks read as different numbers.
      num_grouped: values with a point; bare: the first integer without one that is not 0; has_long: whether an integer
        without a point has four digits or more.
    """

    def __init__(self, decimal_mark: str) -> None:
        super().__init__(functools.partial(notations.units, decimal_mark=decimal_mark))
        self._mark = decimal_mark
        self.units: dict[str, str] = {}
        self.range = _Range()
        self.whole = True
        self.proof: str | None = None
        self.leading_zero: str | None = None
        self.other: str | None = None
        self.num_grouped = 0
        self.bare: str | None = None
        self.has_long = False

    @property
    def unit(self) -> str:
        return next(iter(self.units), "")

    def _take(self, texts: pa.StringArray, values: pa.Array) -> None:
        for unit in values.unique().to_pylist():
            self.units.setdefault(unit, texts.filter(pc.equal(values, unit))[0].as_py())
        numbers = notations.numbers(texts, self._mark, self.unit)
        self.range.add_array(numbers)
        self.whole &= _are_whole(numbers)
        self._compare(texts)
        if self._mark == ",":
            self._count_groups(texts)

    @property
    def is_grouped(self) -> bool:
        """Whether a point stands where thousands begin, and nowhere else: 981 beside 12.775, and no 1500 or 3.5."""
        return self.num_grouped >= _GROUPED and self.bare is not None and not self.has_long

    def _count_groups(self, texts: pa.StringArray) -> None:
        has_point = pc.match_substring(texts, ".")
        self.num_grouped += pc.sum(has_point).as_py()
        bare = texts.filter(pc.invert(has_point))
        self.has_long |= pc.any(pc.match_substring_regex(bare, "[0-9]{4}")).as_py() is True
        self.bare = self.bare or _first(bare, pc.match_substring_regex(bare, "[1-9]"))

    def _compare(self, texts: pa.StringArray) -> None:
        """Looks for values that tell the marks apart: those with a point or a comma."""
        if self.proof is not None and self._mark == ".":  # nobody asks for more
            return
        texts = texts.filter(pc.match_substring_regex(texts, "[.,]"))
        (other_mark,) = {*MARKS} - {self._mark}
        is_proof = pc.is_null(notations.units(texts, other_mark))
        self.proof = self.proof or _first(texts, is_proof)
        starts = pc.match_substring_regex(texts, f"^[^0-9]*0[{self._mark}]")
        self.leading_zero = self.leading_zero or _first(texts, starts)
        self.other = self.other or _first(texts, pc.invert(is_proof))


def _first(texts: pa.StringArray, chosen: pa.BooleanArray) -> str | None:
    found = texts.filter(chosen)
    return found[0].as_py() if len(found) else None


class _TimeReading(_Reading):
    """Dates and times of a format; None for ISO 8601."""

    def __init__(self, time_format: str | None) -> None:
        super().__init__(functools.partial(notations.times, time_format=time_format))
        self._time_format = time_format
        self._calendar = _Calendar()

    def _take(self, texts: pa.StringArray, values: pa.Array) -> None:
        self._calendar.add(values)

    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        facts = {"kind": "times", "time_format": self._time_format, **self._calendar.facts()}
        return {**facts, **_num_values(counts, factor), "examples": _examples(values)}


def _date_like(texts: pa.StringArray) -> pa.StringArray:
    return pc.if_else(notations.looks_like_time(texts), texts, None)


class _Text(Content):
    """Text: integers, numbers, times or words. What one value contradicts, the column is not.

    Args:
      text: False for decimals, which are examined as text so that no digit is lost.
    """

    def __init__(self, notation: Notation, *, text: bool) -> None:
        self._text = text
        self._mark = notation.decimal_mark
        self._num_blank = 0
        self._num_marked = 0
        self._markers = set[str]()
        self._num_texts = 0
        self._integers = _IntegerReading()
        self._numbers = _NumberReading()
        self._marked = {mark: _MarkReading(mark) for mark in MARKS if text}
        self._iso = _TimeReading(notations.ISO if notation.time_format else None)
        self._times = _TimeReading(notation.time_format) if notation.time_format else None
        self._integers_are_days = notation.has_days
        self._date_like = _Reading(_date_like)

    def simplified(self, values: pa.Array, counts: pa.Array) -> tuple[pa.Array, np.ndarray]:
        values, numbers = super().simplified(values, counts)
        if pa.types.is_string(values.type):
            return values, numbers
        try:
            return values.cast(pa.string()), numbers
        except pa.ArrowInvalid:  # bytes that are no UTF-8
            texts = [value.decode(errors="replace") for value in values.cast(pa.binary()).to_pylist()]
            return pa.array(texts, pa.string()), numbers

    def examine(self, values: pa.Array, counts: np.ndarray) -> None:
        trimmed = pc.utf8_trim_whitespace(values)
        missing = notations.is_missing(trimmed)
        if pc.any(missing).as_py():
            blank = pc.equal(trimmed, "").to_numpy(zero_copy_only=False)
            marked = missing.to_numpy(zero_copy_only=False) & ~blank
            self._num_blank += int(counts[blank].sum())
            self._num_marked += int(counts[marked].sum())
            self._markers.update(trimmed.filter(pa.array(marked)).to_pylist())
            trimmed = trimmed.filter(pc.invert(missing))
        self._num_texts += len(trimmed)
        for reading in (self._integers, self._numbers, *self._marked.values(), self._iso, self._date_like):
            reading.add(trimmed)
        if self._times is not None:
            self._times.add(trimmed)

    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        plain: dict[str, Any] = {"text": self._text, "markers": sorted(self._markers), **self._evidence()}
        missing = {"num_unmarked_missing": self._num_blank + self._num_marked}
        if not self._num_texts:
            return {"kind": "empty", **plain, **missing}
        trimmed = pc.utf8_trim_whitespace(values)
        present = pc.invert(notations.is_missing(trimmed))
        texts = trimmed.filter(present)
        text_counts = counts[present.to_numpy(zero_copy_only=False)]
        found = self._times_or_numbers(texts, text_counts, factor)
        if found is not None:
            return {**plain, **missing, **found}
        return {**plain, **self._words(values, counts, factor), **self._looks()}

    def _evidence(self) -> dict[str, Any]:
        """What the texts say about the decimal mark of the data set."""
        proofs: dict[str, str] = {}
        for mark, reading in self._marked.items():
            proof = reading.proof if reading.fits_all or reading.fits_nearly else None
            if mark == ",":
                proof = proof or reading.leading_zero
            if proof is not None:
                proofs[mark] = proof
        comma = self._marked.get(",")
        is_open = self._mark is None and comma is not None and comma.fits_all and self._numbers.fits_all
        return {
            "proofs": proofs,
            "two_ways": comma.other if comma is not None and is_open else None,
            "beside_thousands": comma.bare if comma is not None and is_open and comma.is_grouped else None,
            "units": {mark: dict(itertools.islice(each.units.items(), 2)) for mark, each in self._marked.items()},
        }

    def _times_or_numbers(self, texts: pa.StringArray, counts: np.ndarray, factor: int) -> dict[str, Any] | None:
        """The facts of a column that is no words; None for words."""
        is_integer = self._integers.fits_all
        times = self._times
        if times is not None and times.fits_all and (not is_integer or self._integers_are_days):
            return times.facts(texts, counts, factor)
        if is_integer:
            return None if self._integers.is_code else self._integer_facts(texts, counts, factor)
        if self._mark is not None and self._text:
            reading = self._marked[self._mark]
            if reading.fits_all and len(reading.units) == 1:
                numbers = notations.numbers(texts, self._mark, reading.unit)
                how = {"decimal_mark": self._mark, "unit": reading.unit, "samples": self._numbers.odd[:1]}
                return how | _number_facts(numbers, texts, counts, factor, reading)
        elif self._numbers.fits_all:
            return _number_facts(notations.numbers(texts), texts, counts, factor, self._numbers)
        return self._iso.facts(texts, counts, factor) if self._iso.fits_all else None

    def _integer_facts(self, texts: pa.StringArray, counts: np.ndarray, factor: int) -> dict[str, Any]:
        facts: dict[str, Any] = {"kind": "integers", "whole": True}
        if self._mark is not None and self._text:
            facts |= {"decimal_mark": self._mark, "unit": ""}
        range = self._integers.range
        integers = notations.integers(texts)
        if not integers.null_count:
            return facts | _parsed(integers, None, counts, factor, range, most=LISTED)
        # Beyond int64, the digits are the values.
        return facts | {"least": range.least, "most": range.most, **_counted(texts, counts, factor)}

    def _words(self, values: pa.StringArray, counts: np.ndarray, factor: int) -> dict[str, Any]:
        filled = pc.not_equal(pc.utf8_trim_whitespace(values), "")
        if not pc.all(filled).as_py():
            values = values.filter(filled)
            counts = counts[filled.to_numpy(zero_copy_only=False)]
        blanks = pc.sum(pc.count_substring(pc.utf8_trim_whitespace(values), " ")).as_py() or 0
        return {
            "kind": "strings",
            "num_unmarked_missing": self._num_blank,
            "spellings": tuple(spellings(values)) if len(values) <= _SPELLINGS and factor == 1 else (),
            "mean_words": 1 + blanks / max(1, len(values)),
            **_counted(values, counts, factor),
        }

    def _looks(self) -> dict[str, Any]:
        """What words look like, and the exceptions."""
        if self._integers.fits_all:  # codes
            return {}
        marks = [self._mark] if self._mark is not None else MARKS
        marked = [self._marked[mark] for mark in marks if self._text]
        for reading in marked:
            if reading.fits_all:
                return {"look": "formatted", "samples": list(reading.units.values())[:2]}
        if self._numbers.fits_all or any(reading.fits_all for reading in self._marked.values()):  # with the other mark
            odd = marked[0].odd
            return {"look": "formatted", "samples": odd[:1], "odd": odd}
        if self._iso.fits_nearly:
            return {"look": "iso", "samples": self._iso.first[:1], "odd": self._iso.odd}
        if self._times is not None and (self._times.fits_nearly or self._date_like.fits_all):
            return {"look": "times", "samples": self._date_like.first[:1], "odd": self._times.odd}
        if self._date_like.fits_all:
            return {"look": "times", "samples": self._date_like.first[:1]}
        return self._nearly(marked)

    def _nearly(self, marked: Sequence[_MarkReading]) -> dict[str, Any]:
        """What all words but a few look like."""
        looks: list[tuple[str, _Reading]] = [("numbers", self._numbers)]
        looks += [("formatted", reading) for reading in marked]
        looks.append(("times", self._date_like))
        for look, reading in looks:
            if reading.fits_nearly:
                return {"look": look, "samples": reading.first[:1], "odd": reading.odd}
        return {}


def _number_facts(
    numbers: pa.Array, texts: pa.StringArray, counts: np.ndarray, factor: int, reading: _NumberReading | _MarkReading
) -> dict[str, Any]:
    most = LISTED if reading.whole else FEW
    facts = _parsed(numbers, texts, counts, factor, reading.range, most=most)
    return {"kind": "numbers", "whole": reading.whole, **facts}


def _parsed(
    numbers: pa.Array, texts: pa.StringArray | None, counts: np.ndarray, factor: int, range: _Range, *, most: int
) -> dict[str, Any]:
    """The facts of numbers of which some may be written in several ways (5 and 5.0).

    Args:
      texts: as which the values are listed; None: as numbers.
    """
    encoded = numbers.dictionary_encode()
    merged = numbers
    sums = counts
    if len(encoded.dictionary) < len(numbers):
        merged = encoded.dictionary
        sums = np.bincount(encoded.indices.to_numpy(), counts).astype(np.int64)
    facts = {**_counted(merged, sums, factor, most=most), **_ranged(range, merged, sums)}
    if len(merged) < len(numbers) <= _SPELLINGS and texts is not None and factor == 1:
        facts["spellings"] = tuple(spellings(texts.unique()))
    if texts is not None and "values" in facts:
        listed = _counted(texts, counts, factor, most=LISTED)
        facts |= {"values": listed["values"], "counts": listed["counts"]}
    return facts


def _counted(values: pa.Array, counts: np.ndarray, factor: int, *, most: int = LISTED) -> dict[str, Any]:
    """The numbers of values, and the values themselves.

    Args:
      most: different values to list; of more, none is listed if `most` is small.
    """
    facts = {**_num_values(counts, factor), "examples": _examples(values)}
    listed = np.arange(len(counts))
    if len(counts) > _ALL_LISTED or factor > 1:
        listed = np.flatnonzero(counts > 1)
    if factor > 1 or (most <= FEW and len(counts) > most):
        return facts
    kept = pa.table({"count": counts[listed], "value": values.take(pa.array(listed))})
    order = pc.sort_indices(kept, [("count", "descending"), ("value", "ascending")])
    kept = kept.take(order[:most])
    return {**facts, "values": kept.column("value").to_pylist(), "counts": kept.column("count").to_pylist()}


def _num_values(counts: np.ndarray, factor: int) -> dict[str, Any]:
    return {"num_values": len(counts) * factor, "num_once": int((counts == 1).sum()) * factor}


def _examples(values: pa.Array) -> tuple[str, ...]:
    return tuple(str(value) for value in values.slice(0, 3).to_pylist())


def _ranged(range: _Range, values: pa.Array, counts: np.ndarray) -> dict[str, Any]:
    facts = {"least": range.least, "most": range.most}
    if not len(values):
        return facts
    order = pc.sort_indices(values).to_numpy()
    half = np.searchsorted(np.cumsum(counts[order]), counts.sum() / 2)
    return {**facts, "middle": values[int(order[half])].as_py()}


def spellings(words: pa.StringArray) -> Iterator[tuple[str, ...]]:
    """Words that differ only in case, in blanks around them, and in decimals of zero (5 and 5.0)."""
    alike = pc.utf8_lower(pc.utf8_trim_whitespace(words))
    alike = pc.replace_substring_regex(alike, r"^([+-]?[0-9]+)\.0*$", r"\1").dictionary_encode()
    if len(alike.dictionary) == len(words):
        return
    codes = alike.indices.to_numpy()
    several = np.flatnonzero(np.bincount(codes) > 1)
    for code in several[:10]:
        yield tuple(sorted(words.filter(pa.array(codes == code)).to_pylist()))


def spelling_warning(name: str, groups: Sequence[Sequence[str]]) -> str:
    """What a user should know about words that are written in several ways."""
    shown = ", ".join(" = ".join(map(repr, words[:3])) for words in groups[:3])
    how = "case or blanks"
    if any(len({word.strip().lower() for word in words}) > 1 for words in groups):
        how = "case, blanks or decimals of zero"
    return f"{name} has values that differ only in {how}, and count as different: {shown}"
