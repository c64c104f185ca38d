"""What the values of a column are, found out from its different values: integers, numbers, times, words."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from psrun.data import notations

FEW = 256  # different values of a category
LISTED = 100_000  # different values that a profile lists
_ALL_LISTED = 1000  # of more different values, those that occur once are not listed
_FIRST = 100
_SPELLINGS = 10_000  # different values of which several ways to write one are looked for


def content_of(kind: pa.DataType) -> Content:
    types = pa.types
    if types.is_null(kind):
        return Nothing(is_other=False)
    if types.is_decimal(kind):
        return _Text(text=False)
    if types.is_boolean(kind):
        return _Booleans()
    if types.is_integer(kind) or types.is_floating(kind) or types.is_duration(kind):
        return _Numbers()
    if types.is_temporal(kind):
        return _Times()
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    binaries = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    if any(each(kind) for each in (*texts, *binaries)):
        return _Text(text=True)
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

    def __init__(self) -> None:
        self._range = _Range()
        self._whole = True
        self._is_integer = False
        self._num_nan = 0
        self._calendar = _Calendars(_INTEGER_FORMATS)

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
        elif self._calendar.is_alive:
            self._calendar.add_integers(values)

    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        missing = {"num_unmarked_missing": self._num_nan}
        if self._is_integer and (times := self._calendar.facts(values, counts, factor)):
            return {**times, **missing}
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


_INTEGER_FORMATS = ("%Y%m%d", "%Y%m%d%H%M%S")  # and the ranges of such integers
_INTEGER_RANGES = ((19000101, 21001231), (19000101000000, 21001231235959))


class _Calendars:
    """The time formats that all values of a column have."""

    def __init__(self, time_formats: Sequence[str | None]) -> None:
        self._alive: dict[str | None, _Calendar] | None = None
        self._time_formats = time_formats

    @property
    def is_alive(self) -> bool:
        return self._alive is None or bool(self._alive)

    def add_integers(self, integers: pa.Array) -> None:
        """Integers that may be dates such as 20210131; 1950 of them in a row are not."""
        least, most = pc.min_max(integers).as_py().values()
        if least is None:
            return
        if any(low <= least and most <= high for low, high in _INTEGER_RANGES):
            self.add(integers.cast(pa.string()))
        else:
            self._alive = {}

    def add(self, texts: pa.StringArray) -> None:
        """Texts without missing values and without blanks around them."""
        if not len(texts):
            return
        if self._alive is None:
            first = [texts[index].as_py() for index in range(min(5, len(texts)))]
            likely = [each for each in self._time_formats if all(notations.could_be(text, each) for text in first)]
            self._alive = {time_format: _Calendar() for time_format in likely}
        for time_format, calendar in list(self._alive.items()):
            times = notations.times(texts, time_format)
            if times.null_count:
                del self._alive[time_format]
            else:
                calendar.add(times)

    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        """The facts of the first time format of all values; none if there is none."""
        if not self._alive:
            return {}
        (time_format, calendar), *others = self._alive.items()
        another = others[0][0] if others else None
        facts = {"kind": "times", "time_format": time_format, "ambiguous": another, **calendar.facts()}
        return {**facts, **_num_values(counts, factor), "examples": _examples(values)}


@dataclass
class _Marked:
    """Numbers with a decimal mark, as long as all values are."""

    decimal_mark: str
    is_alive: bool = True
    whole: bool = True
    range: _Range = field(default_factory=_Range)

    def add(self, texts: pa.StringArray) -> None:
        values = notations.numbers(texts, self.decimal_mark)
        self.is_alive = values.null_count == 0
        if self.is_alive:
            self.range.add_array(values)
            self.whole &= _are_whole(values)


class _Text(Content):
    """Text: integers, numbers, times or words. What one value contradicts, the column is not.

    Args:
      text: False for decimals, which are examined as text so that no digit is lost.
    """

    def __init__(self, *, text: bool) -> None:
        self._text = text
        self._num_blank = 0
        self._num_marked = 0
        self._markers = set[str]()
        self._num_words_sum = 0
        self._num_texts = 0
        self._is_numeric = True
        self._is_integer = True
        self._is_code = False
        self._whole = True
        self._range = _Range()
        self._marked = [_Marked("."), _Marked(",")]
        self._calendars = _Calendars(notations.TIME_FORMATS)
        self._num_numbers = 0
        self._num_odd = 0
        self._odd: list[str] = []

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
        if not len(trimmed):
            return
        if self._is_numeric or len(self._odd) <= FEW:
            self._examine_numbers(trimmed)
        if not self._is_numeric:
            self._num_words_sum += pc.sum(pc.count_substring(trimmed, " ")).as_py() + len(trimmed)
            for marked in self._marked:
                if marked.is_alive:
                    marked.add(trimmed)
        if self._calendars.is_alive and (self._is_integer or not self._is_numeric):
            if self._is_numeric:
                self._calendars.add_integers(notations.integers(trimmed))
            else:
                self._calendars.add(trimmed)

    def _examine_numbers(self, trimmed: pa.StringArray) -> None:
        was_numeric = self._is_numeric
        was_integer = self._is_integer
        self._examine_integers(trimmed)
        if self._is_integer:
            self._num_numbers += len(trimmed)
            return
        numbers = notations.numbers(trimmed)
        if was_integer and self._range.least is not None:
            self._range = _Range(float(self._range.least), float(self._range.most))
        self._num_numbers += len(numbers) - numbers.null_count
        if numbers.null_count:
            self._num_odd += numbers.null_count
            self._odd += trimmed.filter(numbers.is_null()).slice(0, FEW + 1).to_pylist()
            self._is_numeric = False
        else:
            self._whole &= _are_whole(numbers)
            self._range.add_array(numbers)
        if was_numeric and not self._is_numeric:
            self._begin_marked(was_integer, trimmed)

    def _begin_marked(self, only_integers: bool, trimmed: pa.StringArray) -> None:
        """Whether the numbers so far, and the first other text, may have a decimal mark."""
        first = pa.array(self._odd[:1])
        for marked in self._marked:
            seen = self._range.least is not None
            marked.is_alive = notations.numbers(first, marked.decimal_mark).null_count == 0 and (
                marked.decimal_mark == "." or only_integers or not seen
            )
            marked.whole = self._whole
            if seen:
                marked.range.add(float(self._range.least), float(self._range.most))

    def _examine_integers(self, trimmed: pa.StringArray) -> None:
        if not self._is_integer:
            return
        self._is_integer = pc.all(notations.is_whole(trimmed.slice(0, _FIRST))).as_py()  # most words need no more
        if not self._is_integer:
            return
        integers = notations.integers(trimmed)
        beyond = trimmed.filter(integers.is_null())
        self._is_integer = pc.all(notations.is_whole(beyond)).as_py() is not False
        if not self._is_integer:
            return
        self._is_code |= bool(pc.any(notations.has_leading_zero(trimmed)).as_py())
        self._range.add_array(integers)
        for text in beyond.to_pylist():
            self._range.add(int(text), int(text))

    def facts(self, values: pa.Array, counts: np.ndarray, factor: int) -> dict[str, Any]:
        plain: dict[str, Any] = {"text": self._text, "markers": sorted(self._markers)}
        missing = {"num_unmarked_missing": self._num_blank + self._num_marked}
        if not self._num_texts:
            return {"kind": "empty", **plain, **missing}
        trimmed = pc.utf8_trim_whitespace(values)
        present = pc.invert(notations.is_missing(trimmed))
        numeric = trimmed.filter(present)
        numeric_counts = counts[present.to_numpy(zero_copy_only=False)]
        if self._is_numeric and not self._is_code:
            if self._is_integer and (times := self._calendars.facts(numeric, numeric_counts, factor)):
                return {**plain, **times, **missing}
            return {**plain, **missing, **self._numbers(numeric, numeric_counts, factor)}
        if not self._is_numeric:
            for marked in self._marked:
                if marked.is_alive:
                    return {**plain, **missing, **_marked_facts(marked, numeric, numeric_counts, factor)}
            if times := self._calendars.facts(numeric, numeric_counts, factor):
                return {**plain, **times, **missing}
        return {**plain, **self._words(values, counts, factor)}

    def _numbers(self, texts: pa.StringArray, counts: np.ndarray, factor: int) -> dict[str, Any]:
        kind = {"kind": "integers" if self._is_integer else "numbers", "whole": self._whole}
        if not self._is_integer:
            most = LISTED if self._whole else FEW
            return {**kind, **_parsed(notations.numbers(texts), texts, counts, factor, self._range, most=most)}
        integers = notations.integers(texts)
        if not integers.null_count:
            return {**kind, **_parsed(integers, None, counts, factor, self._range, most=LISTED)}
        # Beyond int64, the digits are the values.
        return {**kind, "least": self._range.least, "most": self._range.most, **_counted(texts, counts, factor)}

    def _words(self, values: pa.StringArray, counts: np.ndarray, factor: int) -> dict[str, Any]:
        filled = pc.not_equal(pc.utf8_trim_whitespace(values), "")
        if not pc.all(filled).as_py():
            values = values.filter(filled)
            counts = counts[filled.to_numpy(zero_copy_only=False)]
        is_almost_numeric = self._num_numbers > 10 * self._num_odd and not self._is_numeric
        return {
            "kind": "strings",
            "num_unmarked_missing": self._num_blank,
            "odd": self._odd[:10] if is_almost_numeric else (),
            "spellings": tuple(spellings(values)) if len(values) <= _SPELLINGS and factor == 1 else (),
            "mean_words": self._num_words_sum / max(1, self._num_texts) if not self._is_numeric else 1.0,
            **_counted(values, counts, factor),
        }


def _marked_facts(marked: _Marked, texts: pa.StringArray, counts: np.ndarray, factor: int) -> dict[str, Any]:
    numbers = notations.numbers(texts, marked.decimal_mark)
    facts = _parsed(numbers, texts, counts, factor, marked.range, most=FEW)
    kind = {"kind": "numbers", "whole": marked.whole, "decimal_mark": marked.decimal_mark}
    return {**kind, **facts, "examples": _examples(texts)}


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
    """Words that differ only in case and in blanks around them."""
    alike = pc.utf8_lower(pc.utf8_trim_whitespace(words)).dictionary_encode()
    if len(alike.dictionary) == len(words):
        return
    codes = alike.indices.to_numpy()
    several = np.flatnonzero(np.bincount(codes) > 1)
    for code in several[:10]:
        yield tuple(sorted(words.filter(pa.array(codes == code)).to_pylist()))


def spelling_warning(name: str, groups: Sequence[Sequence[str]]) -> str:
    """What a user should know about words that are written in several ways."""
    shown = ", ".join(" = ".join(map(repr, words[:3])) for words in groups[:3])
    return f"{name} has values that differ only in case or blanks, and count as different: {shown}"
