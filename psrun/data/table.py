"""Examples in files of columns: CSV and TSV, TFRecord, Parquet, NumPy's .npz."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

import tensorflow as tf

from psrun.data import blocks, described, formats, preparation
from psrun.data.columns import Wanted, checked
from psrun.data.prepared import Prepared, found
from psrun.data.source import Feature, Task
from psrun.errors import ConfigError, DataError, Problem
from psrun.schema import did_you_mean

_TEXT = {"csv": ",", "tsv": "\t"}  # and what stands between fields


class Table(Prepared):
    """Rows of files that name their columns, all of one format, gzipped where names of text or TFRecord end in .gz.

    A row with a wrong number of fields, without a value, or with one that is not what its column holds is bad.

    Args:
      path: files to train on: one, a folder, or a pattern with * ? and [].
      label: its column: 0 or 1 (binary), an integer from 0 to num_classes - 1 (multiclass), a number (regression).
      eval_path: the same as `path` to evaluate on; None for none.
      features: by name, what `described.Described` holds; None: taken from the first rows of the first file.
      format: csv, tsv, tfrecord, parquet or npz; None: by how the names end.
      delimiter: between the fields of text; None: a comma, or a tab for tsv.
      columns: the names of the fields of text; None: the first row of each file says them.
      quoted: whether fields of text may stand in double quotes.
      num_buckets: ids of each string that has neither a vocabulary nor a number of its own.
      max_bad_rows: so many bad rows are left out and told; one more is an error.
      cache: the folder for prepared sets, which all workers must see; None for one in the home folder.
      tell: called while rows are prepared, with how far that is.

    Raises:
      ConfigError: an option cannot be, or names a column that is not there; pyarrow is needed and not installed.
      DataError: there are no such files, one cannot be read to its end or has other columns than the first, or there
        are more bad rows.
    """

    def __init__(
        self,
        *,
        path: str,
        label: str,
        eval_path: str | None = None,
        task: Task = "binary",
        num_classes: int | None = None,
        features: Mapping[str, Any] | None = None,
        format: str | None = None,
        delimiter: str | None = None,
        columns: Sequence[str] | None = None,
        quoted: bool = True,
        num_buckets: int = 100_000,
        max_bad_rows: int = 0,
        cache: str | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        _check(task, num_classes, format, delimiter, columns, num_buckets)
        read = described.read(features) if features is not None else None
        train, evaluation = found(path, eval_path, max_bad_rows)
        form = format or formats.of([*train, *evaluation])
        layout = formats.Layout(form, delimiter or _TEXT.get(form, ","), quoted, tuple(columns) if columns else None)
        known = formats.columns(train[0], layout)
        own = read or _taken(train[0], known, label, layout)
        wanted = {name: feature.wanted(name) for name, feature in own.items()}
        _check_columns(wanted, label, known, layout, train[0])
        self.task, self.num_classes = task, (num_classes or 1) if task == "multiclass" else 1
        classes = {"binary": 2, "multiclass": num_classes, "regression": None}[task]
        wanted[label] = Wanted(label, "int64" if task == "multiclass" else "float32", num_classes=classes)
        prepare = functools.partial(
            _set, wanted, layout, (train[0], known), preparation.Preparing(max_bad_rows, cache, tell)
        )
        super().__init__(train, evaluation, prepare, label=label)
        scales = self._train.scales
        self.features: Mapping[str, Feature] = {
            name: each.feature(num_buckets, scales.get(name)) for name, each in own.items()
        }
        if read is None:
            told = ", ".join(f"{name} {each.dtype}" for name, each in own.items())
            self.facts = {**self.facts, "features_taken": told}
        self.warnings += tuple(_unused(self.features))

    def _example(self, columns: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        features, label = super()._example(columns)
        return features, label[:, 0] if self.task == "multiclass" else label


def _check(
    task: str,
    num_classes: int | None,
    format: str | None,
    delimiter: str | None,
    columns: Sequence[str] | None,
    num_buckets: int,
) -> None:
    problems = []
    if task not in get_args(Task):
        problems.append(Problem("data.task", f"is {task!r}, must be one of {', '.join(get_args(Task))}"))
    if task == "multiclass" and (num_classes is None or num_classes < 2):
        problems.append(Problem("data.num_classes", f"is {num_classes}, must be 2 or more where data.task=multiclass"))
    if task != "multiclass" and num_classes is not None:
        problems.append(Problem("data.num_classes", "is for data.task=multiclass"))
    if format is not None and format not in formats.FORMATS:
        problems.append(Problem("data.format", f"is {format!r}, must be one of {', '.join(formats.FORMATS)}, or null"))
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        problems.append(Problem("data.delimiter", f"is {delimiter!r}, must be one character, no quote or line feed"))
    if columns is not None and len(set(columns)) < max(len(columns), 1):
        problems.append(Problem("data.columns", "must name the fields, each by another name"))
    if num_buckets < 1:
        problems.append(Problem("data.num_buckets", f"is {num_buckets}, must be 1 or more"))
    if problems:
        raise ConfigError(problems)


def _taken(
    name: str, known: Sequence[str] | None, label: str, layout: formats.Layout
) -> dict[str, described.Described]:
    """The features that the first rows of a file let be taken."""
    if known is None:
        raise ConfigError([Problem("data.features", "must be given: records may each hold other ones")])
    rows = next(formats.rows(name, known, layout), None)
    if rows is None:
        raise DataError(f"there is no row in {name} to take the features from; name them: data.features")
    features = described.taken(rows, label, parse=layout.format in _TEXT, name=name)
    if not features:
        raise ConfigError([Problem("data.features", f"{name} has no column but {', '.join(known)}")])
    return features


def _check_columns(
    wanted: Mapping[str, Wanted], label: str, known: Sequence[str] | None, layout: formats.Layout, name: str
) -> None:
    problems = []
    places = {"data.label": label, **{f"data.features.{feature}": want.column for feature, want in wanted.items()}}
    for key, column in places.items():
        if known is not None and column not in known:
            problems.append(Problem(key, f"{name} has no column {column!r}.{did_you_mean(column, known)}"))
        elif key != "data.label" and label in (column, key.removeprefix("data.features.")):
            problems.append(Problem(key, f"{label!r} is the label"))
    for feature, want in wanted.items():
        if layout.format in _TEXT and want.width != 1:
            problems.append(Problem(f"data.features.{feature}.width", f"is {want.width}; a field of text is one value"))
    if problems:
        raise ConfigError(problems)


def _set(
    wanted: Mapping[str, Wanted],
    layout: formats.Layout,
    first: tuple[str, Sequence[str] | None],
    preparing: preparation.Preparing,
    names: Sequence[str],
) -> blocks.Blocks:
    columns = {name: blocks.Column(want.dtype, want.width) for name, want in wanted.items()}
    read = functools.partial(_pieces, wanted, layout, first)
    how = [asdict(layout), sorted(first[1] or ()), {name: asdict(want) for name, want in wanted.items()}]
    return preparation.prepared(names, columns, read, layout=f"table {json.dumps(how)}", how=preparing)


def _pieces(
    wanted: Mapping[str, Wanted], layout: formats.Layout, first: tuple[str, Sequence[str] | None], name: str
) -> Iterator[preparation.Piece]:
    here = formats.columns(name, layout)
    if set(here or ()) != set(first[1] or ()):
        missing, more = {*(first[1] or ())} - {*(here or ())}, {*(here or ())} - {*(first[1] or ())}
        told = [f"{what} {', '.join(map(repr, sorted(which)))}" for what, which in
                (("lacks", missing), ("also has", more)) if which]  # fmt: skip
        raise DataError(f"{name} has other columns than {first[0]}: it {' and '.join(told)}")
    for rows in formats.rows(name, list(dict.fromkeys(want.column for want in wanted.values())), layout):
        yield checked(rows, wanted)


def _unused(features: Mapping[str, Feature]) -> Iterator[str]:
    """Says what the models of psrun would pass over."""
    raw = [n for n, f in features.items() if f.dtype == tf.int64 and f.vocabulary is None and f.num_buckets is None]
    if raw:
        yield f"{', '.join(raw)}: integers with neither vocabulary nor num_buckets, which psrun's own models do not use"
