"""Examples in files of columns: CSV and TSV, Parquet, Arrow IPC, JSON lines, NumPy's .npz, TFRecord."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import tensorflow as tf

from psrun.config.schema import did_you_mean
from psrun.data import (
    feature_spec,
    formats,
    label_guess,
    labels,
    preparation,
    profiles,
    proposals,
    splits,
    table_features,
    weights,
)
from psrun.data.columns import Wanted
from psrun.data.prepared_source import PreparedSource, found
from psrun.data.prepared_source import checked as with_rows
from psrun.data.source import Feature, Task
from psrun.data.table_reader import RowsToPredict, TableReader
from psrun.errors import ConfigError, DataError, Problem

LIST_SEPARATOR = "|"  # of the values of a list in a field of text
# The recommended training, tuned with model=wide_deep on the tables of `benchmarks/tables.py`.
_EPOCHS = 20
_EPOCHS_OF_CLASSES = 40  # of more than two
_STEPS = 5000  # over all epochs, at most
_BATCHES = 40  # of an epoch, at least
_SMALLEST_BATCH, _LARGEST_BATCH = 32, 1024
_BATCH_SIZES = ((60_000, 256), (120_000, 512))  # the largest one for up to as many rows
_LEARNING_RATE = 0.003


class Table(PreparedSource):
    """Rows of files that name their columns, all of one format, gzipped where names of text or TFRecord end in .gz.

    A row with a wrong number of fields, without a value, or with one that is not what its column holds is malformed.
    Rows without a label are left out.

    Args:
      path: files to train on: one, a folder, or a pattern with * ? and [].
      label: its column: 0 or 1 (binary), an integer from 0 to num_classes - 1 (multiclass), a number (regression), or
        one of `label_vocabulary`.
      weight: the column with the weights of the examples, numbers of 0 or more; None for none. It is not a feature.
      eval_path: the same as `path` to evaluate on; None: `split` says which rows of `path` are evaluation examples.
      split: the keys of `splits.SplitSpec`, or a fraction; None: all rows of `path` are training examples.
      task: binary, multiclass or regression; None: as `recorded`, or guessed from the labels.
      label_vocabulary: the values of labels in the order of the classes, all strings or all integers; None where they
        are class numbers, or guessed.
      features: by name, the options of `feature_spec.FeatureSpec`; None: as `recorded`, or guessed from all rows.
      format: one of `formats.FORMATS`; None: by how the names end, or by the first bytes.
      delimiter: between the fields of text; None: a comma, or a tab for tsv.
      columns: column names of text; None: the first row of each file is the header.
      quoted: whether fields of text may stand in double quotes.
      encoding: of text, as Python names it, such as latin-1; a field that is not in it makes its row malformed.
      num_buckets: ids of each string that has neither a vocabulary nor its own number; None: 100,000, or of a
        guess as many as fit its values.
      max_bad_rows: number of malformed rows to skip, with a report; one more is an error.
      cache: the folder for prepared sets, which all workers must see; None for one in the home folder.
      recorded: the `facts` of the source that the run began with, whose guess and split hold.
      run_folder: for vocabularies that are too long for run.json; None: there is none.
      predicting: whether the evaluation examples are only predicted: these need no label and no weight, malformed rows
        stay among them, and `rows_to_predict` describes them.
      tell: called repeatedly during preparation with the progress.

    Attributes:
      guessed: a row for each inferred feature, to display; see `proposals.Proposal.row`.
      notes: what was decided for the user, a line each.

    Raises:
      ConfigError: an option cannot be, or names a column that is not there.
      DataError: there are no such files, one cannot be read to its end or has other columns than the first, or there
        are more malformed rows.
    """

    def __init__(
        self,
        *,
        path: str,
        label: str,
        weight: str | None = None,
        eval_path: str | None = None,
        split: Mapping[str, Any] | float | None = None,
        task: Task | None = None,
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
        run_folder: Path | None = None,
        predicting: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        _check(task, num_classes, format, delimiter, columns, encoding, num_buckets, label_vocabulary)
        specs = feature_spec.read(features) if features is not None else {}
        train, evaluation = found(path, eval_path, max_bad_rows, overlapping=predicting)
        layout = _layout(train, evaluation, (path, eval_path), format, delimiter, quoted, columns, encoding)
        known = formats.columns(train[0], layout)
        _check_columns({}, label, weight, known, layout, train[0])
        recorded = recorded or {}
        split_spec = _split(split, bool(evaluation), recorded)
        _check_split(split_spec, known, train[0])
        guess = _Guess(train, layout, label, weight, known, cache, max_bad_rows, tell)
        target = _described_label(task, num_classes, label_vocabulary, recorded) or guess.label(task, num_classes)
        if not specs and recorded:
            specs = feature_spec.recorded(recorded, known or (), run_folder)
        self.guessed: list[dict[str, Any]] = []
        if not specs:
            specs, self.guessed = guess.features(num_buckets)
        reader = TableReader(_wanted(specs, layout), layout, train[0], known, rows=guess.rows)
        _check_columns(reader.wanted, label, weight, known, layout, train[0])
        reader = reader.with_label(label, target).with_weight(weight)
        options = preparation.Options(max_bad_rows, cache, tell)
        prepared = with_rows(reader.split(train, options, split_spec, recorded), train[0], several=len(train) > 1)
        self.rows_to_predict: RowsToPredict | None = None
        evaluated = None
        if predicting and evaluation:
            reader = reader.predicting(evaluation[0])
            evaluated = reader.prepared(evaluation, replace(options, keep_malformed=True))
            labeled = label in reader.wanted and not evaluated.num_unlabeled
            problems = evaluated.problems
            self.rows_to_predict = RowsToPredict(evaluated.num_examples, labeled, problems, evaluation, layout)
        elif evaluation:
            evaluated = with_rows(reader.prepared(evaluation, options), evaluation[0], several=len(evaluation) > 1)
        self.task: Any = target.task
        self.num_classes = (target.num_classes or 1) if target.task == "multiclass" else 1
        self.label_vocabulary = target.label_vocabulary
        super().__init__(prepared, evaluated, label=label, weight=weight)
        self.notes: tuple[str, ...] = (f"label {label}: {target.note}",) if target.note else ()
        if self.guessed:
            advice = f"psrun data inspect {shlex.quote(path)} --label {shlex.quote(label)} --write conf/data/NAME.yaml"
            self.notes = (f"to edit the features: {advice}", *self.notes)
        self._describe(prepared, split_spec, is_new=not recorded)
        self.facts = {"num_train_files": len(train), "num_eval_files": len(evaluation), **self.facts}
        if features is None:
            self.facts = {**self.facts, "features": feature_spec.record(specs, run_folder)}
        if task is None:
            self.facts = {**self.facts, "label": _record(target)}
        described = table_features.made(specs, num_buckets, prepared.scales, run_folder)
        self._take_scales(described, prepared, evaluated, recorded.get("scales", None if recorded else {}))
        self.warnings += (*guess.warnings, *table_features.unused(self.features))
        self._check_labels(prepared, evaluated, is_told=predicting or bool(target.num_missing))

    def _describe(self, prepared: preparation.PreparedSet, spec: splits.SplitSpec, *, is_new: bool) -> None:
        """Adds the split to the facts and, of a new run, to the notes."""
        num_rows = prepared.num_examples
        num_train = self.num_train_examples
        if spec.by != "none" and num_train in (0, num_rows):
            which = "train" if num_train == 0 else "evaluate"
            message = f"leaves none of {num_rows:,} rows to {which} on"
            message += "; use another fraction or column, data.eval_path=FILE, or data.split.by=none"
            raise ConfigError([Problem(splits.KEY, message)])
        described = {"spec": splits.options(spec), **prepared.facts}
        self.facts = {**self.facts, "split": described}
        if spec.by != "none" and is_new:
            self.notes += (splits.sentence(spec, num_rows - num_train, num_rows),)

    def _check_labels(
        self, prepared: preparation.PreparedSet, evaluated: preparation.PreparedSet | None, *, is_told: bool
    ) -> None:
        """Warns of missing labels, unless the user `is_told`, and if all examples of one kind have the same class."""
        if not is_told and (num_missing := self.facts.get("num_unlabeled_rows")):
            self.warnings += (f"{num_missing:,} rows without a label are left out",)
        if self.task == "regression":
            return
        eval_range = prepared.label_ranges.get("eval") if evaluated is None else evaluated.label_ranges.get("train")
        of_evaluation = "metrics that compare classes, such as AUC, mean nothing"
        for kind, count, labels_range, result in (
            ("training", self.num_train_examples, prepared.label_ranges.get("train"), "there is nothing to learn"),
            ("evaluation", self.num_eval_examples, eval_range, of_evaluation),
        ):
            if labels_range is not None and labels_range[0] == labels_range[1] and count > 1:
                which = self._class_name(labels_range[0])
                self.warnings += (f"all {count:,} {kind} examples have the label {which}: {result}",)

    def _scales(self) -> dict[str, Any]:
        """The scales of features and label for run.json: a model keeps them, whatever the files have later."""
        scales: dict[str, Any] = {}
        for name, feature in self.features.items():
            if feature.dtype == tf.float32 and not feature.is_list:
                scales[name] = {"mean": feature.mean, "deviation": feature.deviation}
                if feature.boundaries:
                    scales[name]["boundaries"] = list(feature.boundaries)
        if self.task == "regression" and self._label is not None:
            scales[self._label] = {"mean": self.label_mean, "deviation": self.label_deviation}
        return scales

    def _class_name(self, number: float) -> str:
        return str(int(number)) if self.label_vocabulary is None else repr(self.label_vocabulary[int(number)])

    def _take_scales(
        self,
        features: Mapping[str, Feature],
        prepared: preparation.PreparedSet,
        evaluated: preparation.PreparedSet | None,
        recorded: Mapping[str, Any] | None,
    ) -> None:
        """Takes the scales of features, of labels to regress and of weights.

        Args:
          recorded: by the run, and hold; None for a run from before scales were recorded, whose labels had none.
        """
        label = self._label
        weight = self._weight
        self.features: Mapping[str, Feature] = table_features.with_scales(features, recorded or {})
        if self.task == "regression" and label is not None and recorded is not None:
            scale = prepared.scales[label]
            known = recorded.get(label, {"mean": scale.mean, "deviation": scale.deviation})
            self.label_mean = known["mean"]
            self.label_deviation = known["deviation"]
        if recorded is not None:
            self.facts = {**self.facts, "scales": self._scales()}
        if weight is not None:
            other = evaluated.scales.get(weight) if evaluated else None
            self.warnings += tuple(weights.check_means(prepared.scales[weight], other))
            self.facts = {**self.facts, "mean_weight": prepared.scales[weight].mean}

    def recommended(self, global_batch_size: int | None) -> dict[str, Any]:
        """See `DataSource`."""
        count = self.num_train_examples
        most = next((size for rows, size in _BATCH_SIZES if count <= rows), _LARGEST_BATCH)
        recommended = min(most, max(_SMALLEST_BATCH, 1 << max(1, count // _BATCHES).bit_length() - 1))
        steps_per_epoch = -(-count // (global_batch_size or recommended))
        most_epochs = _EPOCHS_OF_CLASSES if self.task == "multiclass" else _EPOCHS
        epochs = min(most_epochs, max(1, -(-_STEPS // steps_per_epoch)))
        rate = {"learning_rate": _LEARNING_RATE, "learning_rate_falls": True}
        return {"global_batch_size": recommended, "epochs": epochs, "steps_per_epoch": None, **rate}

    def _example(self, columns: dict[str, tf.Tensor]) -> tuple[Any, ...]:
        features, label, *weight = super()._example(columns)
        if self.task == "multiclass":
            label = tf.cast(label[:, 0], tf.int64)
        return features, label, *weight


def _described_label(
    task: Task | None,
    num_classes: int | None,
    vocabulary: labels.Vocabulary | None,
    recorded: Mapping[str, Any],
) -> label_guess.Label | None:
    """The label as the configuration or the run describes it; None if neither does."""
    if task is None and "label" in recorded:
        known = recorded["label"]
        own = known.get("label_vocabulary")
        vocabulary = vocabulary or (None if own is None else tuple(own))
        return label_guess.Label(known["task"], known.get("num_classes"), vocabulary, known.get("decimal_mark"))
    if task is None and vocabulary is not None:
        task = "binary" if len(vocabulary) == 2 else "multiclass"
    if task == "multiclass" and num_classes is None and vocabulary is not None:
        num_classes = len(vocabulary)
    return None if task is None else label_guess.Label(task, num_classes, vocabulary)


def _record(label: label_guess.Label) -> dict[str, Any]:
    return {**label.options, **({"decimal_mark": label.decimal_mark} if label.decimal_mark else {})}


def _layout(
    train: Sequence[str],
    evaluation: Sequence[str],
    paths: Sequence[str | None],
    format: str | None,
    delimiter: str | None,
    quoted: bool,
    columns: Sequence[str] | None,
    encoding: str,
) -> formats.Layout:
    form = format or formats.of([*train, *evaluation])
    usual = formats.TEXT.get(form, ",")
    names = tuple(columns) if columns else None
    folders = tuple(each for each in paths if each)
    return formats.Layout(form, _unescaped(delimiter) or usual, quoted, names, encoding, folders)


def _unescaped(delimiter: str | None) -> str | None:
    return formats.TAB if delimiter == r"\t" else delimiter


def _split(node: Any, has_evaluation: bool, recorded: Mapping[str, Any]) -> splits.SplitSpec:
    """The split as configured, or as the run recorded it."""
    configured = splits.read(node)
    if recorded:  # a run from before there were splits had none
        return splits.read(recorded["split"]["spec"]) if "split" in recorded else splits.SplitSpec("none")
    return splits.SplitSpec("none") if has_evaluation else configured


def _wanted(specs: Mapping[str, feature_spec.FeatureSpec], layout: formats.Layout) -> dict[str, Wanted]:
    separator = LIST_SEPARATOR if layout.format in formats.TEXT else None
    wanted: dict[str, Wanted] = {}
    for name, feature in specs.items():
        wanted |= feature.wanted(name, separator)
    return wanted


class _Guess:
    """What the rows of the training files tell about their columns; looked at only if it is needed."""

    def __init__(
        self,
        names: Sequence[str],
        layout: formats.Layout,
        label: str,
        weight: str | None,
        known: Sequence[str] | None,
        cache: str | None,
        max_bad_rows: int,
        tell: Callable[[str], None],
    ) -> None:
        self._names = names
        self._layout = layout
        self._label = label
        self._weight = weight
        self._known = known
        self._max_bad_rows = max_bad_rows
        self._tell = tell
        self.warnings: tuple[str, ...] = ()
        self._cache = preparation.cache_folder(cache)
        self.rows: dict[str, list[formats.Rows]] = {}  # those that were looked at, by file

    @functools.cached_property
    def _profiles(self) -> dict[str, profiles.Profile]:
        found = profiles.of_files(self._names, self._layout, cache=self._cache, keep=self.rows, tell=self._tell)
        first = next(iter(found.values()))  # all have the same number of rows
        preparation.check_bad(first.num_bad, [first.first_bad], self._max_bad_rows)
        if not first.num_rows:
            raise DataError(f"there is no row in {self._names[0]} to infer the features from")
        return found

    def label(self, task: Task | None, num_classes: int | None) -> label_guess.Label:
        if self._known is None:
            return label_guess.Label("binary")
        return label_guess.of(self._profiles[self._label], task=task, num_classes=num_classes)

    def features(self, num_buckets: int | None) -> tuple[dict[str, feature_spec.FeatureSpec], list[dict[str, Any]]]:
        """The inferred features, and rows to display them."""
        if self._known is None:
            message = "is required for TFRecord files, whose records have no schema"
            raise ConfigError([Problem("data.features", message)])
        proposed = proposals.of(self._profiles.values(), (self._label, self._weight))
        features = proposals.features(proposed, num_buckets)
        if not features:
            message = f"cannot be inferred: {proposals.nothing_left(proposed)}"
            raise ConfigError([Problem("data.features", message)])
        self.warnings = tuple(proposals.warnings(proposed))
        return features, [each.row(name) for name, each in proposed.items()]


def _check(
    task: str | None,
    num_classes: int | None,
    format: str | None,
    delimiter: str | None,
    columns: Sequence[str] | None,
    encoding: str,
    num_buckets: int | None,
    label_vocabulary: labels.Vocabulary | None,
) -> None:
    problems = [*formats.problems(_unescaped(delimiter), columns, encoding)]
    if task is not None and task not in get_args(Task):
        problems.append(Problem("data.task", f"is {task!r}, must be one of {', '.join(get_args(Task))}"))
    if task == "multiclass" and label_vocabulary is None and (num_classes is None or num_classes < 2):
        problems.append(Problem("data.num_classes", f"is {num_classes}, must be 2 or more with data.task=multiclass"))
    if task != "multiclass" and num_classes is not None:
        problems.append(Problem("data.num_classes", "requires data.task=multiclass; remove it"))
    if label_vocabulary is not None and task is not None:
        problems += labels.fitting(task, num_classes, label_vocabulary)
    if format is not None and format not in formats.FORMATS:
        problems.append(Problem("data.format", f"is {format!r}, must be one of {', '.join(formats.FORMATS)}, or null"))
    if num_buckets is not None and num_buckets < 1:
        problems.append(Problem("data.num_buckets", f"is {num_buckets}, must be 1 or more"))
    if problems:
        raise ConfigError(problems)


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
            hint = (
                formats.delimiter_hint(name, layout, column)
                or formats.header_hint(known, layout)
                or did_you_mean(column, known)
            )
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


def _check_split(spec: splits.SplitSpec, known: Sequence[str] | None, name: str) -> None:
    if known is None and spec.by in ("group", "time", "last"):
        message = f"is {spec.by}, which TFRecord files have no columns for; choose rows or none, or set data.eval_path"
        raise ConfigError([Problem(f"{splits.KEY}.by", message)])
    problems = [
        Problem(key, f"{name} has no column {column!r}.{did_you_mean(column, known)}")
        for key, column in splits.columns_of(spec).items()
        if known is not None and column not in known
    ]
    if problems:
        raise ConfigError(problems)
