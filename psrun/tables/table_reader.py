"""Reads, splits and prepares the files of a table."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError, DataError, Problem
from psrun.tables import formats, label_guess, notations, preparation, splits, text
from psrun.tables.columns import ColumnSpec, Piece, convert, is_list
from psrun.tables.rows import Layout, Rows, decoded

WEIGHT = "data.weight"
_CLASSES = {"binary": 2, "regression": None}


@dataclass(frozen=True)
class TableReader:
    """Reads and prepares files.

    Attributes:
      specs: how each column of the prepared set is read.
      first: the first training file; `columns`: its columns, which all files have; None where each record has its own.
      label, weight: the columns of these, which are in `specs` too; an empty label: there is none.
      other_labels: the columns of further labels, which are in `specs` too.
      strict: whether other columns than those of the first file are an error.
      rows: of files that were read before.
    """

    specs: Mapping[str, ColumnSpec]
    layout: Layout
    first: str
    columns: Sequence[str] | None
    label: str = ""
    other_labels: tuple[str, ...] = ()
    weight: str | None = None
    strict: bool = True
    rows: Mapping[str, Sequence[Rows]] = field(default_factory=dict)

    def with_targets(
        self, targets: Mapping[str, label_guess.Label], weight: str | None, decimal_mark: str | None = None
    ) -> TableReader:
        """A reader that reads labels, the first of them as `label`, and the weight if there is one, too.

        Args:
          decimal_mark: of the weight.
        """
        specs = dict(self.specs)
        for label, target in reversed(list(targets.items())):
            specs[label] = ColumnSpec(
                label,
                "int64" if target.task == "multiclass" else "float32",
                decimal_mark=target.decimal_mark,
                unit=target.unit or "",
                is_label=True,
                num_classes=_CLASSES.get(target.task, target.num_classes),
                vocabulary=target.label_vocabulary,
            )
        if weight is not None:
            specs[weight] = ColumnSpec(weight, "float32", decimal_mark=decimal_mark, weight=True)
        names = tuple(targets)
        if not names:
            return replace(self, specs=specs, weight=weight)
        return replace(self, specs=specs, label=names[0], other_labels=names[1:], weight=weight)

    def predicting(
        self, names: Sequence[str], options: preparation.Options
    ) -> tuple[preparation.PreparedSet, RowsToPredict]:
        """All rows of files to predict, which may lack the label and the weight, and have other columns."""
        there = formats.suggestions(names[0], self.layout)
        labels = set(self.other_labels)
        if self.label:
            labels.add(self.label)
        dropped = {self.weight} if labels <= {*there} else {self.weight, *labels}
        specs = {key: spec for key, spec in self.specs.items() if key not in dropped}
        lacking = sorted({spec.column for spec in specs.values()}.difference(there))
        if lacking and self.columns is not None:
            other = text.other_delimiter(names[0], self.layout, lacking[0])
            if other:
                notation = f"{names[0]} has the delimiter {other!r}, and the files of the run {self.layout.delimiter!r}"
                raise DataError(f"{notation}; write it as the others: all files of a run have one delimiter, "
                                "decimal mark and encoding")  # fmt: skip
            columns = ", ".join(map(repr, lacking))
            raise DataError(f"{names[0]} lacks {columns}, which the model needs; it has {', '.join(there)}")
        reader = replace(self, specs=specs, strict=False)
        prepared = reader.prepared(names, replace(options, keep_malformed=True))
        labeled = self.label in specs and not prepared.num_unlabeled
        return prepared, RowsToPredict(prepared.num_examples, labeled, prepared.problems, names, self.layout)

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
        return self.prepared(names, options, self._split(names, options, spec, recorded))

    def held_out(
        self,
        names: Sequence[str],
        options: preparation.Options,
        spec: splits.SplitSpec,
        recorded: Mapping[str, Any],
    ) -> HeldOutRows:
        """Where the rows are that `split` with these arguments holds out."""
        split = self._split(names, options, spec, recorded)
        assert split is not None  # there is one
        return HeldOutRows(self, names, split, labeled=bool(self.label))

    def _split(
        self,
        names: Sequence[str],
        options: preparation.Options,
        spec: splits.SplitSpec,
        recorded: Mapping[str, Any],
    ) -> splits.Split | None:
        read_columns = functools.partial(formats.rows_of_files, names, layout=self.layout)
        split = splits.make(spec, read_columns)
        since = recorded.get("split", {}).get("since")
        if since is not None:
            known = preparation.earlier(names, self._contents(split, options), options)
            if known is None or known.facts.get("since") != since:
                split = splits.make(spec, read_columns, since)
        return split

    def _contents(self, split: splits.Split | None, options: preparation.Options) -> preparation.Contents:
        how = [asdict(self.layout), {name: asdict(spec) for name, spec in self.specs.items()}]
        columns = {name: spec.prepared for name, spec in self.specs.items()}
        label = self.label if self.label in columns else None
        num_rows = 0  # of the files before

        def pieces(name: str) -> Iterator[tuple[Piece, np.ndarray | None]]:
            nonlocal num_rows
            end = 0
            for rows in self.rows_of(name, split):
                piece = convert(rows, self.specs, keep=options.keep_malformed)
                parts = None
                if split is not None:
                    held_out = split.held_out(rows, num_rows)
                    parts = held_out[np.searchsorted(rows.places, piece.places)].astype(np.int8)
                end = max(end, rows.end)
                yield piece, parts
            num_rows += end

        if split is None:
            return preparation.Contents(columns, pieces, json.dumps(how), label=label)
        key = json.dumps([*how, split.key])
        return preparation.Contents(columns, pieces, key, splits.PARTS, label, split.facts)

    def rows_of(self, name: str, split: splits.Split | None, more: Sequence[str] = ()) -> Iterator[Rows]:
        """The rows of a file with the columns of the prepared set, those that the split needs, and `more`."""
        if self.strict:
            formats.check_columns(name, self.layout, self.first, self.columns)
        needed: Sequence[str] = ()
        if split is not None:
            needed = split.columns or self.columns or formats.suggestions(self.first, self.layout)
        columns = list(dict.fromkeys([*(spec.column for spec in self.specs.values()), *needed, *more]))
        is_checked = name != self.first or self.weight not in self.specs
        for rows in self.rows.get(name) or formats.rows(name, columns, self.layout):
            if not is_checked:
                self._check_weight(rows.batch.column(self.weight))
                is_checked = True
            yield rows

    def _check_weight(self, values: pa.Array) -> None:
        """Raises ConfigError if the first weights are all missing, or none of them is a number."""
        num_rows = len(values)
        values = decoded(values)
        if is_list(values.type):  # of one value, as in TFRecord
            values = values.flatten()
        if types.is_binary(values.type):
            values = values.cast(pa.string())
        is_text = types.is_string(values.type)
        present = values.filter(pc.invert(notations.is_missing(values))) if is_text else values.drop_null()
        message = f"column {self.weight!r}"
        if not len(present) and num_rows:
            hint = did_you_mean(str(self.weight), formats.suggestions(self.first, self.layout))
            raise ConfigError([Problem(WEIGHT, f"{message} has no values in the first rows of {self.first}.{hint}")])
        if is_text and len(present) and self._are_words(present):
            message += f" of {self.first} holds strings, such as {present[0].as_py()!r}"
            raise ConfigError([Problem(WEIGHT, f"{message}; choose a column of numbers")])

    def _are_words(self, texts: pa.StringArray) -> bool:
        """Whether no text of the weight's column is a number."""
        decimal_mark = self.specs[str(self.weight)].decimal_mark
        return notations.numbers(texts, decimal_mark).null_count == len(texts)


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
    layout: Layout

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the files."""
        return tuple(formats.suggestions(self.names[0], self.layout))

    def kept(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of all rows, in order; null where a row cannot be split into fields."""
        for name in self.names:
            for rows in formats.rows(name, columns, self.layout):
                batch = rows.complete().batch
                yield pa.record_batch([decoded(each) for each in batch.columns], batch.schema.names)


@dataclass(frozen=True)
class HeldOutRows:
    """The rows of the training files that their split holds out: well formed, and with a label if the table has one.

    Attributes:
      reader: of these files, named `names`.
      split: as it was made for the prepared rows.
    """

    reader: TableReader
    names: Sequence[str]
    split: splits.Split
    labeled: bool = True
    problems: Mapping[int, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the files."""
        return tuple(formats.suggestions(self.names[0], self.reader.layout))

    def kept(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of the held-out rows, in order.

        Rows are read and converted again as they were prepared: only this tells which of them are examples.
        """
        num_rows = 0  # of the files before
        for name in self.names:
            end = 0
            for rows in self.reader.rows_of(name, self.split, columns):
                piece = convert(rows, self.reader.specs)
                places: Any = np.searchsorted(rows.places, piece.places)
                places = places[self.split.held_out(rows, num_rows)[places]]
                batch = rows.batch.select(list(columns)).take(pa.array(places))
                yield pa.record_batch([decoded(each) for each in batch.columns], batch.schema.names)
                end = max(end, rows.end)
            num_rows += end
