"""Profiles of columns of files: what their values are, how many there are, how often each occurs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from psrun.data import storage
from psrun.files import write_atomic
from psrun.tables import contents, formats, notations
from psrun.tables.columns import flattened, is_list
from psrun.tables.leaks import Leaks
from psrun.tables.notations import NO_NOTATION, Notation
from psrun.tables.rows import Layout, Rows, decoded

LONG = 100  # values of a list; longer ones are counted
_COUNTED = 200_000  # different values that are counted exactly; above, a sample of the values is
_COUNTED_BYTES = 1 << 24
_PENDING = 1 << 16  # values of blocks that are merged together
_KEPT_BYTES = 1 << 29  # of rows, between the guess and the preparation
_LOOKED = 16  # files of which the first rows are looked at
_VERSION = 10


@dataclass(frozen=True)
class Profile:
    """The profile of a column.

    Attributes:
      kind: integers, numbers, booleans, times, strings, other (none of these) or empty (no value at all).
      text: whether the files have text; numbers and times are written in it.
      whole: of numbers, whether none has a fraction.
      decimal_mark, unit, time_format: how numbers and times in text are read, as in `feature_spec.FeatureSpec`.
      look: of strings, what nearly all look like: "numbers" (plain ones), "formatted" (numbers with units or
        separators), "iso" (times of ISO 8601), "times" (of any format), or "" for none of these. `odd` has the
        exceptions.
      samples: some such values, two if their units differ; of numbers, one that is no plain number.
      units: by decimal mark, a value for each of the first two units that numbers with that mark have.
      proofs: by decimal mark, a value that only that mark reads as a number.
      two_ways: of plain numbers, a value that a decimal comma reads as another number, if the comma reads all of them.
      beside_thousands: of these, a value without a point, if a point stands only where a thousand would begin.
      width: values of the first row that has any; `longest`: the most values of a row.
      varies: whether rows that are not empty lists have different numbers of values.
      num_empty, num_long: rows that are empty lists, and rows with more than 100 values.
      num_rows, num_items, num_missing: rows, their values, and those of them that are missing; an empty list has none.
      num_null: missing values that are null, not text.
      markers: texts that stand for missing values, of numbers and times.
      num_bad, first_bad: number of malformed rows, which are not counted, and the problem of the first.
      num_values, num_once: numbers of different values, and of those that occur once; estimates if not `is_exact`.
      least, most, middle: of integers, exact; of numbers; of times as ISO 8601. The middle is the median.
      values, counts: values by falling number of occurrences. Beyond 1,000, those that occur once are missing, and of
        more than 100,000 all but the most frequent ones.
      examples: the first values, as text.
      spellings: words that are written in several ways, such as ("yes", "Yes "), and numbers such as ("5", "5.0").
      is_index: whether the values count the rows.
      mean_words: of strings, in the mean of the different values.
      decides: labels of which each value of the column has one, and not by chance.
      num_months, num_hours, num_weekdays, num_days: of times, how many different ones there are.
    """

    column: str
    kind: str
    text: bool = False
    whole: bool = False
    decimal_mark: str | None = None
    unit: str | None = None
    time_format: str | None = None
    look: str = ""
    samples: Sequence[str] = ()
    odd: Sequence[str] = ()
    units: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    proofs: Mapping[str, str] = field(default_factory=dict)
    two_ways: str | None = None
    beside_thousands: str | None = None
    width: int = 1
    longest: int = 1
    varies: bool = False
    num_empty: int = 0
    num_long: int = 0
    num_rows: int = 0
    num_items: int = 0
    num_missing: int = 0
    num_null: int = 0
    markers: Sequence[str] = ()
    num_bad: int = 0
    first_bad: str = ""
    num_values: int = 0
    num_once: int = 0
    is_exact: bool = True
    least: int | float | str | None = None
    most: int | float | str | None = None
    middle: int | float | str | None = None
    values: Sequence[str | int | float] = ()
    counts: Sequence[int] = ()
    examples: Sequence[str] = ()
    spellings: Sequence[Sequence[str]] = ()
    is_index: bool = False
    mean_words: float = 0.0
    decides: Sequence[str] = ()
    num_months: int = 0
    num_weekdays: int = 0
    num_hours: int = 0
    num_days: int = 0

    @property
    def num_present(self) -> int:
        return self.num_items - self.num_missing

    @property
    def repeats(self) -> float:
        """How often a value occurs in the mean."""
        return self.num_present / max(1, self.num_values)

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest number, integers as such; (0, 0) if there are no numbers."""
        if isinstance(self.least, int | float) and isinstance(self.most, int | float):
            return self.least, self.most
        return 0, 0

    @property
    def is_list(self) -> bool:
        return self.varies or self.num_empty > 0


def profile_files(
    names: Sequence[str],
    layout: Layout,
    *,
    cache: Path | None,
    notation: Notation = NO_NOTATION,
    labels: Sequence[str] = (),
    keep: dict[str, list[Rows]] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Profile]:
    """The profile of each column of files, over all of their well-formed rows.

    Args:
      cache: the folder that stores profiles until the files change; None for none.
      notation: how numbers and times are written in texts.
      labels: columns of labels, of which `Profile.decides` tells.
      keep: gets the rows of each file, unless they take more than 512 MiB together: for who reads them next.
      tell: called repeatedly with the progress.

    Raises:
      DataError: a file cannot be read to its end, or has other columns than the first.
    """
    kept = {} if keep is None else keep
    if cache is None:
        return _profiled(names, layout, notation, labels, kept, tell)
    known = storage.digests(names, cache, tell)
    key = json.dumps([_VERSION, asdict(layout), asdict(notation), sorted(labels), known])
    path = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.profile.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        records = json.loads(path.read_text(encoding="utf-8"))
        return {each["column"]: Profile(**each) for each in records}
    profiles = _profiled(names, layout, notation, labels, kept, tell)
    if storage.digests(names, cache, tell) != known:  # files changed meanwhile
        kept.clear()
        return profiles
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps([vars(each) for each in profiles.values()]))
    return profiles


def profile_first_rows(names: Sequence[str], layout: Layout, wanted: Sequence[str] | None = None) -> dict[str, Profile]:
    """The profile of each column over the first rows of the first files.

    Of text these are up to 16 files; of other formats it is one, since the types of the others may differ.

    Args:
      wanted: the columns to profile, which are in the files; None for all.

    Raises:
      DataError: a file cannot be read, or has other columns than the first.
    """
    columns = formats.suggestions(names[0], layout)
    if wanted is None:
        wanted = columns
    profilers = {column: Profiler(column) for column in wanted}
    for name in names[: _LOOKED if layout.is_text else 1]:
        formats.check_columns(name, layout, names[0], columns)
        rows = next(formats.rows(name, wanted, layout), None)
        if rows is None:
            continue
        for column, profiler in profilers.items():
            profiler.add(rows.batch.column(column), rows.places)
    return {column: profiler.profile() for column, profiler in profilers.items()}


def _profiled(
    names: Sequence[str],
    layout: Layout,
    notation: Notation,
    labels: Sequence[str],
    kept: dict[str, list[Rows]],
    tell: Callable[[str], None],
) -> dict[str, Profile]:
    schema = formats.schema(names[:1], layout) or pa.schema([])
    for name in names:
        formats.check_columns(name, layout, names[0], schema.names)
    unified = None if layout.is_text else formats.schema(names, layout)
    profilers = {column: Profiler(column, notation) for column in schema.names}
    leaks = Leaks(schema if unified is None else unified, labels)
    num_rows = 0
    num_bad = 0
    first_bad = ""
    num_kept_bytes = 0
    for number, name in enumerate(names, 1):
        for profiler in profilers.values():
            profiler.begin_file()
        for rows in formats.rows(name, schema.names, layout, unified):
            for column, profiler in profilers.items():
                profiler.add(rows.batch.column(column), rows.places)
            leaks.add(rows.batch)
            num_rows += rows.batch.num_rows
            num_bad += len(rows.bad)
            if rows.bad and not first_bad:
                row, problem = rows.problems[0]
                first_bad = f"{name}, row {row}: {problem}"
            if num_kept_bytes <= _KEPT_BYTES:
                kept.setdefault(name, []).append(rows)
                num_kept_bytes += rows.batch.nbytes
            tell(f"inspecting the columns of {name} ({number} of {len(names)} files): {num_rows:,} rows so far")
    if num_kept_bytes > _KEPT_BYTES:
        kept.clear()
    decided = leaks.labels_by_column()
    return {
        column: replace(profiler.profile(), num_bad=num_bad, first_bad=first_bad, decides=decided.get(column, ()))
        for column, profiler in profilers.items()
    }


class Profiler:
    """Makes the profile of a column from its parts, which have one type, or dictionaries of one type."""

    def __init__(self, column: str, notation: Notation = NO_NOTATION) -> None:
        self._column = column
        self._notation = notation
        self._lengths = _Lengths()
        self._index = _Index()
        self._distinct = _Distinct()
        self._content: contents.Content = contents.Nothing(is_other=False)
        self._num_rows = 0
        self._num_items = 0
        self._num_null = 0

    def begin_file(self) -> None:
        self._index.begin_file()

    def add(self, values: pa.Array, places: np.ndarray | None = None) -> None:
        """Adds the values of rows.

        Args:
          places: of the rows in their file; None if they follow those before.
        """
        places = np.arange(self._num_rows, self._num_rows + len(values)) if places is None else places
        self._num_rows += len(values)
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if is_list(kind):
            self._index.is_alive = False
            lengths, values = flattened(decoded(values))
            self._lengths.add(lengths)
            kind = values.type
        self._num_items += len(values)
        self._num_null += values.null_count
        if isinstance(self._content, contents.Nothing):
            self._content = contents.content_of(kind, self._notation)
            self._distinct.examine = self._content.examine
        if isinstance(self._content, contents.Nothing):
            return
        if self._index.is_alive:
            self._index.add(decoded(values), places)
        self._distinct.add(*self._content.simplified(*_counted(values)))

    def profile(self) -> Profile:
        values, counts = self._distinct.merged()
        facts = self._content.facts(values, counts, self._distinct.factor)
        num_missing = self._num_null + facts.pop("num_unmarked_missing", 0)
        if self._num_items == num_missing and facts["kind"] != "other":
            facts = {"kind": "empty", "text": facts.get("text", False)}
        return Profile(
            self._column,
            num_rows=self._num_rows,
            num_items=self._num_items,
            num_missing=num_missing,
            num_null=self._num_null,
            is_exact=self._distinct.factor == 1,
            is_index=self._index.is_alive and self._num_rows > 1 and facts["kind"] == "integers",
            **{**asdict(self._lengths), "width": self._lengths.width or 1},
            **facts,
        )


def _counted(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The different values, and how often each occurs."""
    if not pa.types.is_dictionary(values.type):
        counted = values.value_counts()
        return counted.field(0), counted.field(1)
    counts = np.bincount(values.indices.drop_null().to_numpy(), minlength=len(values.dictionary))
    present = counts > 0
    if present.all():
        return values.dictionary, pa.array(counts)
    return values.dictionary.filter(pa.array(present)), pa.array(counts[present])


@dataclass
class _Lengths:
    """The lengths of lists, as attributes of the profile; a width of 0 before there is a value."""

    width: int = 0
    longest: int = 1
    varies: bool = False
    num_empty: int = 0
    num_long: int = 0

    def add(self, lengths: np.ndarray) -> None:
        some = lengths[lengths > 0]
        self.num_empty += len(lengths) - len(some)
        if not len(some):
            return
        self.width = self.width or int(some[0])
        self.longest = max(self.longest, int(some.max()))
        self.varies |= bool((some != self.width).any())
        self.num_long += int((some > LONG).sum())


class _Index:
    """Whether a column counts the rows of each file: from 0 or 1 in the first, in others from any number."""

    def __init__(self) -> None:
        self.is_alive = True
        self._is_first_file = True
        self._offset: int | None = None  # of the current file

    def begin_file(self) -> None:
        self._is_first_file &= self._offset is None
        self._offset = None

    def add(self, values: pa.Array, places: np.ndarray) -> None:
        if not self.is_alive or not len(values):
            return
        ends = _as_integers(values.take([0, len(values) - 1]))
        first, last = (None, None) if ends is None else ends.to_pylist()
        if first is None or last is None or last - first != places[-1] - places[0]:
            self.is_alive = False
            return
        offset = first - int(places[0])
        if self._offset is None:
            self._offset = offset
            self.is_alive = offset in (0, 1) or not self._is_first_file
        integers = _as_integers(values)
        self.is_alive &= (
            offset == self._offset
            and integers is not None
            and integers.null_count == 0
            and bool((integers.to_numpy() == places + offset).all())
        )


def _as_integers(values: pa.Array) -> pa.Int64Array | None:
    kind = values.type
    if pa.types.is_string(kind):
        return notations.integers(values)
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return values.cast(pa.int64())
    return None


class _Distinct:
    """Different values and their counts; of too many, those with a hash that ends in zeros.

    Attributes:
      examine: called with all different values that were added, of one or several blocks, and their counts, before any
        is given up.
    """

    examine: Callable[[pa.Array, np.ndarray], None]

    def __init__(self) -> None:
        self._values: pa.Array | None = None
        self._counts: np.ndarray = np.zeros(0, np.int64)
        self._pending: list[tuple[pa.Array, np.ndarray]] = []
        self._num_pending = 0
        self._zeros = 0

    @property
    def factor(self) -> int:
        """The number of different values for each of those that are counted."""
        return 1 << self._zeros

    def add(self, values: pa.Array, counts: np.ndarray) -> None:
        if self._zeros:
            self.examine(values, counts)
            values, counts = self._sampled(values, counts)
        self._pending.append((values, counts))
        self._num_pending += len(values)
        if self._num_pending > max(_PENDING, len(self._counts)):
            self._merge()

    def merged(self) -> tuple[pa.Array, np.ndarray]:
        """The values and their counts, by falling count; of equal counts, in the order of the files."""
        self._merge()
        if self._values is None:
            return pa.array([], pa.string()), self._counts
        if not self._zeros:
            self.examine(self._values, self._counts)
        return self._values, self._counts

    def _merge(self) -> None:
        parts = [(values, counts) for values, counts in self._pending if len(values)]
        self._pending = []
        self._num_pending = 0
        if self._values is not None:
            parts.insert(0, (self._values, self._counts))
        if not parts:
            return
        encoded = pa.concat_arrays([values for values, _ in parts]).dictionary_encode()
        sums = np.bincount(encoded.indices.to_numpy(), np.concatenate([counts for _, counts in parts]))
        self._values = encoded.dictionary
        self._counts = sums.astype(np.int64)
        if self._is_too_much() and not self._zeros:
            self.examine(self._values, self._counts)
        while self._is_too_much():
            self._zeros += 1
            self._values, self._counts = self._sampled(self._values, self._counts)

    def _is_too_much(self) -> bool:
        num_bytes = 0 if self._values is None else self._values.nbytes
        return len(self._counts) > _COUNTED or (len(self._counts) > 1000 and num_bytes > _COUNTED_BYTES)

    def _sampled(self, values: pa.Array, counts: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        kept = _hashes(values) & np.uint64(self.factor - 1) == 0
        return values.filter(pa.array(kept)), counts[kept]


def _hashes(values: pa.Array) -> np.ndarray:
    """A hash of each value, equal in all blocks and files; Arrow offers none."""
    if pa.types.is_string(values.type):  # only of columns with very many values; NumPy takes longer
        codes = map(zlib.crc32, values.cast(pa.binary()).to_pylist())
        hashes: np.ndarray = np.fromiter(codes, np.uint64, len(values))
    elif pa.types.is_integer(values.type):
        hashes = values.to_numpy().astype(np.uint64)
    else:
        hashes = values.to_numpy(zero_copy_only=False).astype(np.float64).view(np.uint64)
    hashes = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    hashes = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return hashes ^ (hashes >> np.uint64(32))
