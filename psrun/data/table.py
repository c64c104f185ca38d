"""Examples in files of columns: CSV and TSV, TFRecord, Parquet, NumPy's .npz."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import tensorflow as tf

from psrun.config.schema import did_you_mean
from psrun.data import blocks, feature_spec, formats, labels, preparation, profiles, proposals, table_features, weights
from psrun.data.columns import Wanted
from psrun.data.pieces import Piece, checked
from psrun.data.prepared_source import PreparedSource, found
from psrun.data.source import Feature, Task
from psrun.errors import ConfigError, DataError, Problem

LIST_SEPARATOR = "|"  # of the values of a list in a field of text


class Table(PreparedSource):
    """Rows of files that name their columns, all of one format, gzipped where names of text or TFRecord end in .gz.

    A row with a wrong number of fields, without a value, or with one that is not what its column holds is bad.

    Args:
      path: files to train on: one, a folder, or a pattern with * ? and [].
      label: its column: 0 or 1 (binary), an integer from 0 to num_classes - 1 (multiclass), a number (regression), or
        one of `label_vocabulary`.
      weight: the column with the weights of the examples, numbers of 0 or more; None for none. It is not a feature.
      eval_path: the same as `path` to evaluate on; None for none.
      label_vocabulary: the values of labels in the order of the classes, all strings or all integers; None where they
        are class numbers.
      features: by name, the options of `feature_spec.FeatureSpec`; None: as `recorded`, or guessed from all rows.
      format: csv, tsv, tfrecord, parquet or npz; None: by how the names end.
      delimiter: between the fields of text; None: a comma, or a tab for tsv.
      columns: column names of text; None: the first row of each file is the header.
      quoted: whether fields of text may stand in double quotes.
      encoding: of text, as Python names it, such as latin-1; a field that is not in it makes its row bad.
      num_buckets: ids of each string that has neither a vocabulary nor its own number; None: 100,000, or of a
        guess as many as fit its values.
      max_bad_rows: number of malformed rows to skip, with a report; one more is an error.
      cache: the folder for prepared sets, which all workers must see; None for one in the home folder.
      recorded: the `facts` of the source that the run began with, whose guess holds.
      predicting: whether the evaluation examples are only predicted: the weights of these are not read.
      tell: called repeatedly during preparation with the progress.

    Attributes:
      guessed: a row for each inferred feature, to display; see `proposals.Proposal.row`.

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
        weight: str | None = None,
        eval_path: str | None = None,
        task: Task = "binary",
        num_classes: int | None = None,
        label_vocabulary: labels.Vocabulary | None = None,
        features: Mapping[str, Any] | None = None,
        format: str | None = None,
        delimiter: str | None = None,
        columns: Sequence[str] | None = None,
        quoted: bool = True,
        encoding: str = "utf-8",
        num_buckets: int | None = None,
        max_bad_rows: int = 0,
        cache: str | None = None,
        recorded: Mapping[str, Any] | None = None,
        predicting: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        delimiter = formats.TAB if delimiter == r"\t" else delimiter
        if task == "multiclass" and num_classes is None and label_vocabulary is not None:
            num_classes = len(label_vocabulary)
        _check(task, num_classes, format, delimiter, columns, encoding, num_buckets, label_vocabulary)
        specs = feature_spec.read(features) if features is not None else None
        train, evaluation = found(path, eval_path, max_bad_rows)
        form = format or formats.of([*train, *evaluation])
        layout = formats.Layout(
            form, delimiter or formats.TEXT.get(form, ","), quoted, tuple(columns) if columns else None, encoding
        )
        known = formats.columns(train[0], layout)
        own, self.guessed = specs or {}, list[dict[str, Any]]()
        if specs is None and recorded:
            own = feature_spec.recorded(recorded, known or ())
        if not own:
            keep = Path(cache).expanduser() if cache else preparation.cache()
            own, self.guessed = _guessed(train, known, label, weight, layout, num_buckets, keep, tell)
        wanted: dict[str, Wanted] = {}
        for name, feature in own.items():
            wanted |= feature.wanted(name, LIST_SEPARATOR if form in formats.TEXT else None)
        _check_columns(wanted, label, weight, known, layout, train[0])
        self.task, self.num_classes = task, (num_classes or 1) if task == "multiclass" else 1
        classes = {"binary": 2, "multiclass": num_classes, "regression": None}[task]
        dtype = "int64" if task == "multiclass" else "float32"
        wanted[label] = Wanted(label, dtype, num_classes=classes, vocabulary=label_vocabulary)
        self.label_vocabulary = label_vocabulary
        unweighted = _Reader(wanted, layout, train[0], known, preparation.Preparing(max_bad_rows, cache, tell))
        reader = unweighted if weight is None else unweighted.with_weight(weight)
        super().__init__(
            train, evaluation, reader.prepared, label=label, weight=weight,
            prepare_evaluation=unweighted.ignoring(weight).prepared if predicting else None,
        )  # fmt: skip
        scales = self._train.scales
        self.features: Mapping[str, Feature] = table_features.made(own, num_buckets, scales)
        if features is None:
            self.facts = {**self.facts, "features": {name: feature_spec.options(each) for name, each in own.items()}}
        if weight is not None:
            evaluated = self._evaluation.scales if self._evaluation else {}
            self.warnings += tuple(weights.check_means(scales[weight], evaluated.get(weight)))
            self.facts = {**self.facts, "mean_weight": scales[weight].mean}
        self.warnings += tuple(table_features.unused(self.features))

    def _example(self, columns: dict[str, tf.Tensor]) -> tuple[Any, ...]:
        features, label, *weight = super()._example(columns)
        return features, label[:, 0] if self.task == "multiclass" else label, *weight


def _check(
    task: str,
    num_classes: int | None,
    format: str | None,
    delimiter: str | None,
    columns: Sequence[str] | None,
    encoding: str,
    num_buckets: int | None,
    label_vocabulary: labels.Vocabulary | None,
) -> None:
    problems = [*formats.problems(delimiter, columns, encoding)]
    if task not in get_args(Task):
        problems.append(Problem("data.task", f"is {task!r}, must be one of {', '.join(get_args(Task))}"))
    if task == "multiclass" and (num_classes is None or num_classes < 2):
        problems.append(Problem("data.num_classes", f"is {num_classes}, must be 2 or more with data.task=multiclass"))
    if task != "multiclass" and num_classes is not None:
        problems.append(Problem("data.num_classes", "requires data.task=multiclass; remove it"))
    if label_vocabulary is not None:
        problems += labels.fitting(task, num_classes, label_vocabulary)
    if format is not None and format not in formats.FORMATS:
        problems.append(Problem("data.format", f"is {format!r}, must be one of {', '.join(formats.FORMATS)}, or null"))
    if num_buckets is not None and num_buckets < 1:
        problems.append(Problem("data.num_buckets", f"is {num_buckets}, must be 1 or more"))
    if problems:
        raise ConfigError(problems)


def _guessed(
    names: Sequence[str],
    known: Sequence[str] | None,
    label: str,
    weight: str | None,
    layout: formats.Layout,
    num_buckets: int | None,
    cache: Path,
    tell: Callable[[str], None],
) -> tuple[dict[str, feature_spec.FeatureSpec], list[dict[str, Any]]]:
    """The inferred features of the columns of files, and rows to display them."""
    if known is None:
        raise ConfigError([Problem("data.features", "is required for TFRecord files, whose records have no schema")])
    _check_columns({}, label, weight, known, layout, names[0])
    looked = profiles.of_files(names, layout, cache=cache, tell=tell)
    proposed = proposals.of(looked.values(), (label, weight), name=names[0])
    if proposed and all(each.profile.num_rows == 0 for each in proposed.values()):
        raise DataError(f"there is no row in {names[0]} to infer the features from; set data.features")
    features = proposals.features(proposed, num_buckets)
    if not features:
        raise ConfigError(
            [
                Problem(
                    "data.features",
                    f"cannot be inferred: no feature column of {names[0]} ({', '.join(known)}) has values",
                )
            ]
        )
    return features, [each.row(name) for name, each in proposed.items()]


def _check_columns(
    wanted: Mapping[str, Wanted],
    label: str,
    weight: str | None,
    known: Sequence[str] | None,
    layout: formats.Layout,
    name: str,
) -> None:
    keys = {feature: weights.key_of(feature, want) for feature, want in wanted.items()}
    places = {"data.label": label, **{keys[feature]: want.column for feature, want in wanted.items()}}
    problems = [] if weight is None else list(weights.problems(weight, label, wanted))
    if weight is not None:
        places[weights.KEY] = weight
    for key, column in places.items():
        if known is not None and column not in known:
            hint = formats.delimiter_hint(name, layout, column) or did_you_mean(column, known)
            problems.append(Problem(key, f"{name} has no column {column!r}.{hint}"))
        elif key != "data.label" and (label == column or key == keys.get(label)):
            problems.append(Problem(key, f"{label!r} is the label; choose another column"))
    problems += _of_text(wanted, layout) if layout.format in formats.TEXT else []
    if problems:
        raise ConfigError(problems)


def _of_text(wanted: Mapping[str, Wanted], layout: formats.Layout) -> Iterator[Problem]:
    """Features that a field of text cannot hold."""
    for feature, want in wanted.items():
        key = f"data.features.{want.weights_of or feature}"
        if want.width != 1:
            message = f"is {want.width}, must be 1: a text field holds one value; set max_values for a list"
            yield Problem(f"{key}.width", message)
        if want.max_values is not None and want.separator == layout.delimiter and not layout.quoted:
            message = f"is {want.separator!r}, as is the delimiter of the fields; choose another one"
            yield Problem(f"{key}.separator", message)


_ADDED = ("weight", "max_values", "separator", "weights_of")  # options that keys of prepared sets have only if set


@dataclass(frozen=True)
class _Reader:
    """Reads and prepares files.

    Attributes:
      first: the first training file; `columns`: its columns, which all files have; None where each record has its own.
      weight: the column of the weights, which is in `wanted` too.
      ignored: columns that a file may have or lack.
    """

    wanted: Mapping[str, Wanted]
    layout: formats.Layout
    first: str
    columns: Sequence[str] | None
    preparing: preparation.Preparing
    weight: str | None = None
    ignored: tuple[str, ...] = ()

    def with_weight(self, weight: str) -> _Reader:
        return replace(self, wanted={**self.wanted, weight: Wanted(weight, "float32", weight=True)}, weight=weight)

    def ignoring(self, column: str | None) -> _Reader:
        return self if column is None else replace(self, ignored=(column,))

    def prepared(self, names: Sequence[str]) -> blocks.Blocks:
        columns = {name: blocks.Column(want.dtype, want.width, want.max_values) for name, want in self.wanted.items()}
        # Options that a file was read without do not change the key of its prepared set.
        options = {
            name: {key: value for key, value in asdict(want).items() if key not in _ADDED or value}
            for name, want in self.wanted.items()
        }
        how = [asdict(self.layout), sorted(set(self.columns or ()).difference(self.ignored)), options]
        layout = f"table {json.dumps(how)}"
        return preparation.prepared(names, columns, self._pieces, layout=layout, how=self.preparing)

    def _pieces(self, name: str) -> Iterator[Piece]:
        formats.check_columns(name, self.layout, self.first, self.columns, self.ignored)
        unchecked = self.weight if name == self.first else None
        for rows in formats.rows(name, list(dict.fromkeys(want.column for want in self.wanted.values())), self.layout):
            if unchecked is not None:
                suggestions = functools.partial(formats.suggestions, name, self.layout)
                weights.check_column(unchecked, name, rows.columns[unchecked], suggestions)
                unchecked = None
            yield checked(rows, self.wanted)
