"""Reads, splits and prepares the files of a table."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from psrun.data import formats, label_guess, preparation, splits, weights
from psrun.data.columns import Piece, Wanted, checked, complete
from psrun.errors import DataError


@dataclass(frozen=True)
class TableReader:
    """Reads and prepares files.

    Attributes:
      wanted: what each column of the prepared set is read from.
      first: the first training file; `columns`: its columns, which all files have; None where each record has its own.
      label, weight: the columns of these, which are in `wanted` too.
      strict: whether other columns than those of the first file are an error.
      rows: of files that were read before.
    """

    wanted: Mapping[str, Wanted]
    layout: formats.Layout
    first: str
    columns: Sequence[str] | None
    label: str = ""
    weight: str | None = None
    strict: bool = True
    rows: Mapping[str, Sequence[formats.Rows]] = field(default_factory=dict)

    def with_label(self, label: str, target: label_guess.Label) -> TableReader:
        classes = {"binary": 2, "multiclass": target.num_classes, "regression": None}[target.task]
        dtype = "int64" if target.task == "multiclass" else "float32"
        vocabulary = target.label_vocabulary
        want = Wanted(
            label,
            dtype,
            decimal_mark=target.decimal_mark,
            is_label=True,
            num_classes=classes,
            vocabulary=vocabulary,
        )
        return replace(self, wanted={**self.wanted, label: want}, label=label)

    def with_weight(self, weight: str | None) -> TableReader:
        if weight is None:
            return self
        return replace(self, wanted={**self.wanted, weight: Wanted(weight, "float32", weight=True)}, weight=weight)

    def predicting(self, name: str) -> TableReader:
        """A reader of files to predict, which may lack the label and the weight, and have other columns."""
        there = formats.suggestions(name, self.layout)
        dropped = {self.weight} if self.label in there else {self.weight, self.label}
        wanted = {key: want for key, want in self.wanted.items() if key not in dropped}
        lacking = sorted({want.column for want in wanted.values()}.difference(there))
        if lacking and self.columns is not None:
            columns = ", ".join(map(repr, lacking))
            raise DataError(f"{name} lacks {columns}, which the model needs; it has {', '.join(there)}")
        return replace(self, wanted=wanted, strict=False)

    def prepared(
        self, names: Sequence[str], options: preparation.Options, split: splits.Split | None = None
    ) -> preparation.PreparedSet:
        return preparation.prepared(names, self._contents(split, options), options)

    def split(
        self,
        names: Sequence[str],
        options: preparation.Options,
        spec: splits.SplitSpec,
        recorded: Mapping[str, Any],
    ) -> preparation.PreparedSet:
        """The prepared rows of files, split.

        Args:
          recorded: facts of the run. A split by time stays where it was when the run began.
        """
        read_columns = functools.partial(formats.rows_of_files, names, layout=self.layout)
        split = splits.of(spec, read_columns)
        since = recorded.get("split", {}).get("since")
        if since is not None:
            known = preparation.earlier(names, self._contents(split, options), options)
            if known is None or known.facts.get("since") != since:
                split = splits.of(spec, read_columns, since)
        return self.prepared(names, options, split)

    def _contents(self, split: splits.Split | None, options: preparation.Options) -> preparation.Contents:
        how = [asdict(self.layout), {name: asdict(want) for name, want in self.wanted.items()}]
        columns = {name: want.prepared for name, want in self.wanted.items()}
        pieces = _Pieces(self, split, options.keep_malformed).of
        label = self.label if self.label in columns else None
        if split is None:
            return preparation.Contents(columns, pieces, json.dumps(how), label=label)
        key = json.dumps([*how, split.key])
        return preparation.Contents(columns, pieces, key, splits.PARTS, label, lambda: split.facts)


@dataclass
class _Pieces:
    """Reads files one after the other, and splits their rows."""

    reader: TableReader
    split: splits.Split | None
    keep_malformed: bool
    first: int = 0

    def of(self, name: str) -> Iterator[tuple[Piece, np.ndarray | None]]:
        reader = self.reader
        if reader.strict:
            formats.check_columns(name, reader.layout, reader.first, reader.columns)
        columns = list(dict.fromkeys(want.column for want in reader.wanted.values()))
        if self.split is not None:
            needed = self.split.columns or reader.columns or ()
            columns = list(dict.fromkeys([*columns, *needed]))
        weight = reader.weight if name == reader.first else None
        num_rows = 0
        for rows in reader.rows.get(name) or formats.rows(name, columns, reader.layout):
            if weight is not None and weight in reader.wanted:
                suggestions = functools.partial(formats.suggestions, name, reader.layout)
                weights.check_column(weight, name, rows.batch.column(weight), suggestions)
                weight = None
            piece = checked(rows, reader.wanted, keep=self.keep_malformed)
            parts = None
            if self.split is not None:
                held_out = self.split.held_out(rows, self.first)
                parts = held_out[np.searchsorted(rows.places, piece.places)].astype(np.int8)
            num_rows = max(num_rows, rows.end)
            yield piece, parts
        self.first += num_rows


@dataclass(frozen=True)
class RowsToPredict:
    """The rows of files to predict, all of them.

    Attributes:
      num_rows: of the files.
      labeled: whether the files have the label.
      problems: of malformed rows, by their number from 0 over all files.
    """

    num_rows: int
    labeled: bool
    problems: Mapping[int, str]
    names: Sequence[str]
    layout: formats.Layout

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the files."""
        return tuple(formats.suggestions(self.names[0], self.layout))

    def kept(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of all rows, in order; null where a row cannot be split into fields."""
        for name in self.names:
            for rows in formats.rows(name, columns, self.layout):
                batch = complete(rows).batch
                arrays = [formats.decoded(each) for each in batch.columns]
                yield pa.record_batch(arrays, batch.schema.names)
