"""Examples in files of columns: CSV and TSV, Parquet, Arrow IPC, TFRecord."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from pyarrow import types

from psrun.data import files, labels
from psrun.data.labels import Vocabulary
from psrun.data.lists import ENDS
from psrun.data.source import Batches, ByNumber, Convert, Feature, Task, as_read
from psrun.errors import ConfigError, DataError, Problem
from psrun.tables import (
    contents,
    decimal_marks,
    feature_spec,
    formats,
    header,
    label_guess,
    later_data,
    notations,
    preparation,
    profiles,
    proposals,
    splits,
    table_features,
    text,
)
from psrun.tables.columns import ColumnSpec
from psrun.tables.feature_spec import FeatureSpec
from psrun.tables.notations import Notation
from psrun.tables.preparation import PreparedSet
from psrun.tables.rows import Layout, Rows
from psrun.tables.table_reader import WEIGHT, RowsToPredict, TableReader

# The recommended training, tuned with model=wide_deep on the tables of `benchmarks/tables.py`.
_EPOCHS = 20
_EPOCHS_OF_CLASSES = 40  # of more than two
_STEPS = 5000  # over all epochs, at most
_BATCHES = 40  # of an epoch, at least
_SMALLEST_BATCH = 32
_LARGEST_BATCH = 1024
_BATCH_SIZES = ((60_000, 256), (120_000, 512))  # the largest one for up to as many rows
_LEARNING_RATE = 0.003


class Table(ByNumber):
    """Rows of files that name their columns, all of one format, gzipped where names of text or TFRecord end in .gz.

    A row with a wrong number of fields, without a value, or with one that is not what its column holds is malformed.
    Rows without a label are left out. The rows are prepared once (see `psrun.tables.preparation`).

    Args:
      path: files to train on: one, a folder, or a pattern with * ? and [].
      label: its column: 0 or 1 (binary), an integer from 0 to num_classes - 1 (multiclass), a number (regression), or
        one of `label_vocabulary`. Or several columns, each binary or a regression: labels are a dict by column.
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
      decimal_mark: "." or ",", of all numbers in text, which may then have separators of thousands and a unit; None:
        text is a number if it is a plain one.
      time_format: of times in text, as strptime takes it; None: ISO 8601.
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
      differences: how rows differ from those that the model was trained on, a line each; among `warnings`, too.

    Raises:
      ConfigError: an option cannot be, or names a column that is not there.
      DataError: there are no such files, one cannot be read to its end or has other columns than the first, there are
        more malformed rows, or no training examples.
    """

    checked_by = "psrun.tables.header.problems"
    is_checked = True  # value by value, when the rows are prepared

    def __init__(
        self,
        *,
        path: str,
        label: str | Sequence[str],
        weight: str | None = None,
        eval_path: str | None = None,
        split: Mapping[str, Any] | float | None = None,
        task: Task | None = None,
        num_classes: int | None = None,
        label_vocabulary: Vocabulary | None = None,
        features: Mapping[str, Any] | None = None,
        format: str | None = None,
        delimiter: str | None = None,
        columns: Sequence[str] | None = None,
        quoted: bool = True,
        encoding: str = "utf-8",
        decimal_mark: str | None = None,
        time_format: str | None = None,
        num_buckets: int | None = None,
        max_bad_rows: int = 0,
        cache: str | None = None,
        recorded: Mapping[str, Any] | None = None,
        list_ends: Mapping[str, str] | None = None,
        run_folder: Path | None = None,
        predicting: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        names = (label,) if isinstance(label, str) else tuple(label)
        _raise(
            *labels.column_problems(names, task, num_classes, label_vocabulary),
            *text.problems(delimiter, columns, encoding),
            *labels.description_problems(task, num_classes, label_vocabulary),
            *_problems_of_numbers(format, num_buckets, max_bad_rows),
            *notations.problems(decimal_mark, time_format),
        )
        specs = {} if features is None else feature_spec.read(features, Notation(decimal_mark, time_format))
        train, evaluation = _files(path, eval_path, overlapping=predicting)
        self.files: Sequence[str] = (*train, *evaluation)
        layout = formats.layout(
            [*train, *evaluation],
            format=format,
            delimiter=delimiter,
            columns=columns,
            encoding=encoding,
            quoted=quoted,
            folders=(path, eval_path),
        )
        known = formats.columns(train[0], layout)
        _raise(*header.column_problems({}, names, weight, known, layout, train[0]))
        recorded = recorded or {}
        split_spec = _split(split, bool(evaluation), recorded, time_format)
        splits.check_columns(split_spec, known, train[0])
        options = preparation.Options(max_bad_rows, cache, tell)
        guess = _Guess(train, layout, names, weight, known, options, Notation(decimal_mark, time_format))
        targets = guess.targets(task, num_classes, label_vocabulary, recorded)
        self.guessed: list[dict[str, Any]] = []
        if not specs and recorded:
            specs = feature_spec.recorded(recorded, run_folder)
        if not specs:
            specs, self.guessed = guess.features(num_buckets, None if label_vocabulary else task)
        specs = feature_spec.with_ends(specs, list_ends or {}, recorded)
        specs = feature_spec.with_units(specs, recorded.get("units", {}), guess.unit)
        reader = TableReader(header.columns_of(specs, layout, decimal_mark), layout, train[0], known, rows=guess.rows)
        _raise(*header.column_problems(reader.specs, names, weight, known, layout, train[0]))
        reader = reader.with_targets(targets, weight, decimal_mark)
        guess.check_numbers(reader.specs, recorded, split_spec)
        prepared = _not_empty(reader.split(train, options, split_spec, recorded), train)
        self.rows_to_predict: RowsToPredict | None = None
        evaluated = None
        if predicting and evaluation:
            evaluated, self.rows_to_predict = reader.predicting(evaluation, options)
        elif evaluation:
            evaluated = _not_empty(reader.prepared(evaluation, options), evaluation)
        self.facts: Mapping[str, Any] = {"num_train_files": len(train), "num_eval_files": len(evaluation)}
        self.warnings: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = self._notes_on_features(guess, path, names[0])
        self._take_examples(prepared, evaluated, specs)
        self._take_targets(targets, weight, is_recorded=task is None)
        self._take_split(prepared, split_spec, is_new=not recorded)
        if features is None:
            self._add_facts(features=feature_spec.record(specs, run_folder))
        self._take_units({} if features is None else specs, {} if task is None else targets)
        self.features: Mapping[str, Feature] = table_features.make(specs, num_buckets, prepared.scales, run_folder)
        self._take_scales(prepared, recorded.get("scales", {}))
        self._check_weights(prepared, evaluated)
        self.warnings += (*guess.warnings, *table_features.unused(self.features))
        if not predicting:
            self._warn_of_unlabeled(targets)
        self._check_rows(prepared, evaluated, recorded, split_spec)

    def _notes_on_features(self, guess: _Guess, path: str, label: str) -> tuple[str, ...]:
        if not self.guessed:
            return ()
        advice = f"psrun data inspect {shlex.quote(path)} --label {shlex.quote(label)} --write conf/data/NAME.yaml"
        return (f"to edit the features: {advice}", *guess.notes)

    def _add_facts(self, **facts: Any) -> None:
        self.facts = {**self.facts, **facts}

    def _warn_of_unlabeled(self, targets: Mapping[str, label_guess.Label]) -> None:
        num_missing = self.facts.get("num_unlabeled_rows")
        is_named = any(target.num_missing for target in targets.values())
        if num_missing and not is_named:
            self.warnings += (f"{num_missing:,} rows without a label are left out",)

    def _take_examples(
        self, prepared: PreparedSet, evaluated: PreparedSet | None, specs: Mapping[str, FeatureSpec]
    ) -> None:
        """Takes the rows, and reports those that are malformed, have no label or have truncated lists."""
        self._train = prepared.parts["train"]
        self._evaluation = prepared.parts.get("eval") if evaluated is None else evaluated.rows
        self.num_train_examples = self._train.num_examples
        self.num_eval_examples = self._evaluation.num_examples if self._evaluation else 0
        sets = [each for each in (prepared, evaluated) if each is not None]
        self._add_facts(num_bad_rows=sum(each.num_bad for each in sets))
        self.warnings += tuple(
            f"{each.num_bad:,} malformed rows skipped, the first: {each.bad[0]}" for each in sets if each.num_bad
        )
        if unlabeled := sum(each.num_unlabeled for each in sets):
            self._add_facts(num_unlabeled_rows=unlabeled)
        truncated = {name: sum(each.num_truncated.get(name, 0) for each in sets) for name in sets[0].num_truncated}
        if truncated:  # of the features that are lists
            self._add_facts(num_truncated_rows=truncated)
        if ends := feature_spec.ends_of(specs):
            self._add_facts(**{feature_spec.LIST_ENDS: ends})
        for name, count in truncated.items():
            if count:
                most = self._train.columns[name].max_values
                kept = specs[name].keep or ENDS[0]
                text = f"{name}: {count:,} rows have more than max_values={most} values; the {kept} values are kept"
                self.warnings += (text,)

    def _take_targets(self, targets: Mapping[str, label_guess.Label], weight: str | None, *, is_recorded: bool) -> None:
        self._labels = tuple(targets)
        self._weight = weight
        target = targets[self._labels[0]]
        self.task: Any = target.task
        self.num_classes = (target.num_classes or 1) if target.task == "multiclass" else 1
        self.label_vocabulary = target.label_vocabulary
        self.label_tasks: Mapping[str, str] = {}
        if len(targets) > 1:  # the model decides on losses and metrics, by label
            self.task = None
            self.label_vocabulary = None
            self.label_tasks = {name: each.task for name, each in targets.items()}
        self.notes += tuple(f"label {name}: {each.note}" for name, each in targets.items() if each.note)
        if is_recorded:
            self._add_facts(label=_facts_of(target))
            if self.label_tasks:
                self._add_facts(labels={name: _facts_of(each) for name, each in targets.items()})

    def _take_units(self, specs: Mapping[str, FeatureSpec], targets: Mapping[str, label_guess.Label]) -> None:
        """Adds the units of features and labels that the configuration describes to the facts."""
        described: dict[str, FeatureSpec | label_guess.Label] = {**specs, **targets}
        units: dict[str, str] = {}
        for name, each in described.items():
            if each.decimal_mark is not None:
                units[name] = each.unit or ""
        if units:
            self._add_facts(units=units)

    def _take_split(self, prepared: PreparedSet, spec: splits.SplitSpec, *, is_new: bool) -> None:
        """Adds the split to the facts and, of a new run, to the notes. Raises ConfigError if a side has no rows."""
        num_rows = prepared.num_examples
        num_train = self.num_train_examples
        if spec.by != "none" and num_train in (0, num_rows):
            which = "train" if num_train == 0 else "evaluate"
            reason = splits.size_reason(spec, prepared.facts, num_rows)
            message = f"leaves none of {num_rows:,} rows to {which} on: {reason}"
            message += "; use another fraction, seed or column, data.eval_path=FILE, or data.split.by=none"
            raise ConfigError([Problem(splits.KEY, message)])
        self._add_facts(split={"spec": splits.options(spec), **prepared.facts})
        if is_new and spec.by != "none":
            num_held_out = num_rows - num_train
            self.notes += (splits.sentence(spec, prepared.facts, num_held_out, num_rows),)
            self.warnings += tuple(splits.warnings(spec, prepared.facts, num_held_out, num_rows))

    def _check_classes(self, prepared: PreparedSet, evaluated: PreparedSet | None) -> None:
        """Warns if all examples of one kind have the same class."""
        if self.task in (None, "regression"):
            return
        eval_range = prepared.label_ranges.get("eval") if evaluated is None else evaluated.label_ranges.get("train")
        for kind, count, label_range, result in (
            ("training", self.num_train_examples, prepared.label_ranges.get("train"), "there is nothing to learn"),
            (
                "evaluation",
                self.num_eval_examples,
                eval_range,
                "metrics that compare classes, such as AUC, mean nothing",
            ),
        ):
            if label_range is not None and label_range[0] == label_range[1] and count > 1:
                number = int(label_range[0])
                shown = number if self.label_vocabulary is None else repr(self.label_vocabulary[number])
                self.warnings += (f"all {count:,} {kind} examples have the label {shown}: {result}",)

    def _take_scales(self, prepared: PreparedSet, recorded: Mapping[str, Any]) -> None:
        """Takes the scales of features and of labels to regress: a model keeps them, whatever the files have later.

        Args:
          recorded: by the run, and hold.
        """
        self.features = table_features.with_scales(self.features, recorded)
        scales = table_features.scales(self.features)
        if self.task == "regression":
            known = self._label_scale(self._labels[0], prepared, recorded)
            self.label_mean = known["mean"]
            self.label_deviation = known["deviation"]
            scales[self._labels[0]] = known
        numbers = [name for name, task in self.label_tasks.items() if task == "regression"]
        self.label_scales = {name: self._label_scale(name, prepared, recorded) for name in numbers}
        scales |= self.label_scales
        self._add_facts(scales=scales)

    def _label_scale(self, name: str, prepared: PreparedSet, recorded: Mapping[str, Any]) -> dict[str, float]:
        scale = prepared.scales[name]
        return recorded.get(name, {"mean": scale.mean, "deviation": scale.deviation})

    def _check_weights(self, prepared: PreparedSet, evaluated: PreparedSet | None) -> None:
        if self._weight is None:
            return
        mean = prepared.scales[self._weight].mean
        if mean == 0:
            raise ConfigError([Problem(WEIGHT, "every training example has the weight 0; choose another column")])
        other = evaluated.scales.get(self._weight) if evaluated else None
        if other is not None and other.mean == 0:
            self.warnings += (f"{WEIGHT}: every evaluation example has the weight 0, so its metrics mean nothing",)
        self._add_facts(mean_weight=mean)

    def _labels_to_regress(self) -> dict[str, Feature]:
        """The labels that are numbers, to compare them as features are."""
        names = [name for name, task in self.label_tasks.items() if task == "regression"]
        if self.task == "regression":
            names.append(self._labels[0])
        return {name: Feature((1,), tf.float32) for name in names}

    def _check_rows(
        self,
        prepared: PreparedSet,
        evaluated: PreparedSet | None,
        recorded: Mapping[str, Any],
        split_spec: splits.SplitSpec,
    ) -> None:
        """Checks classes, and compares the evaluation rows and, of a run that goes on, the training rows with those
        that the run was trained on.
        """
        if self.rows_to_predict is None:  # whose labels, if there are any, no metric uses
            self._check_classes(prepared, evaluated)
        label = self._labels[0] if self.task in ("binary", "multiclass") else None
        columns = {**self.features, **self._labels_to_regress()}
        compare = functools.partial(
            later_data.differences, features=columns, class_names=self.label_vocabulary, label=label
        )
        trained = recorded.get("trained_on")
        found = {}
        if trained is None:  # a new run
            trained = later_data.training_record(self._train, columns, label)
        elif self.rows_to_predict is None:
            found["training"] = compare(self._train, trained=trained, title="training rows")
        if self._evaluation is not None:
            rows = self.rows_to_predict
            if rows is not None and not rows.labeled:
                compare = functools.partial(compare, features=self.features, label=None)
            found["evaluation"] = compare(
                self._evaluation,
                trained=trained,
                title="evaluation rows" if rows is None else "rows to predict",
                skipped=() if rows is None else rows.problems,
                is_sample=evaluated is None and rows is None,
                is_later=evaluated is None and split_spec.by in ("time", "last"),
            )
            if not recorded:
                self.notes += found["evaluation"].notes
        self.differences: tuple[str, ...] = tuple(text for each in found.values() for text in each.warnings)
        self.warnings += self.differences
        self._add_facts(trained_on=trained, compared={name: each.facts for name, each in found.items()})

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

    def block(self, batch_size: int) -> int:
        return self._train.block(batch_size)

    def read(self, batches: Batches, convert: Convert = as_read) -> tf.data.Dataset:
        return self._train.read(batches, lambda number, numbers, row: convert(number, numbers, self._example(row)))

    def evaluation(self, *, batch_size: int, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        assert self._evaluation is not None
        return self._evaluation.in_order(batch_size, shard, lambda *columns: self._example(columns[2]))

    def _example(self, columns: dict[str, tf.Tensor]) -> tuple[Any, ...]:
        """The features, the label and, where the set has them, the weights of rows."""
        no_features = (*self._labels, self._weight)
        features = {name: values for name, values in columns.items() if name not in no_features}
        weights = [values[:, 0] for name, values in columns.items() if name == self._weight]
        none = tf.zeros([tf.shape(next(iter(columns.values())))[0], 1])  # of rows that are only predicted
        labels = {name: columns.get(name, none) for name in self._labels}
        if self.label_tasks:
            return features, labels, *weights
        label = labels[self._labels[0]]
        if self.task == "multiclass":
            label = tf.cast(label[:, 0], tf.int64)
        return features, label, *weights


def _raise(*problems: Problem) -> None:
    """Raises ConfigError if there are problems."""
    if problems:
        raise ConfigError(problems)


def _problems_of_numbers(format: str | None, num_buckets: int | None, max_bad_rows: int) -> Iterator[Problem]:
    if format is not None and format not in formats.FORMATS:
        yield Problem("data.format", f"is {format!r}, must be one of {', '.join(formats.FORMATS)}, or null")
    if num_buckets is not None and num_buckets < 1:
        yield Problem("data.num_buckets", f"is {num_buckets}, must be 1 or more")
    if max_bad_rows < 0:
        yield Problem("data.max_bad_rows", f"is {max_bad_rows}, must be 0 or more")


def _files(path: str, eval_path: str | None, *, overlapping: bool) -> tuple[list[str], list[str]]:
    """The training files and the evaluation files; a file may be both only if they are `overlapping`."""
    train = files.find(path)
    evaluation = files.find(eval_path) if eval_path else []
    paths = {files.path(name) for name in train}
    both = [name for name in evaluation if files.path(name) in paths]
    if both and not overlapping:
        raise ConfigError([Problem("data.eval_path", f"{both[0]} is also a training file; use separate files")])
    return train, evaluation


def _not_empty(prepared: PreparedSet, names: Sequence[str]) -> PreparedSet:
    if not prepared.num_examples:
        labels = ", but rows without a label" if prepared.num_unlabeled else ""
        raise DataError(f"there is no row in {names[0]}{' and the others' * (len(names) > 1)}{labels}")
    return prepared


def _facts_of(target: label_guess.Label) -> dict[str, Any]:
    facts = target.options
    if target.decimal_mark is not None:
        facts |= {"decimal_mark": target.decimal_mark, "unit": target.unit}
    return facts


def _recorded_label(recorded: Mapping[str, Any], name: str, names: Sequence[str]) -> Mapping[str, Any]:
    """What the run recorded of a label, as `label` of a source with that label alone."""
    if len(names) == 1:
        return recorded
    return {"label": recorded["labels"][name]} if name in recorded.get("labels", {}) else {}


def _described_label(
    task: Task | None,
    num_classes: int | None,
    vocabulary: Vocabulary | None,
    recorded: Mapping[str, Any],
    decimal_mark: str | None,
) -> label_guess.Label | None:
    """The label as the configuration or the run describes it; None if neither does."""
    if task is None and "label" in recorded:
        known = recorded["label"]
        own = known.get("label_vocabulary")
        vocabulary = vocabulary or (None if own is None else tuple(own))
        how = {"decimal_mark": known.get("decimal_mark"), "unit": known.get("unit")}
        return label_guess.Label(known["task"], known.get("num_classes"), vocabulary, **how)
    if task is None and vocabulary is not None:
        task = "binary" if len(vocabulary) == 2 else "multiclass"
    if task == "multiclass" and num_classes is None and vocabulary is not None:
        num_classes = len(vocabulary)
    return None if task is None else label_guess.Label(task, num_classes, vocabulary, decimal_mark)


def _split(node: Any, has_evaluation: bool, recorded: Mapping[str, Any], time_format: str | None) -> splits.SplitSpec:
    """The split as configured, or as the run recorded it.

    Args:
      time_format: of the data set, for a split without its own.
    """
    configured = splits.read(node)
    if "split" in recorded:
        return splits.read(recorded["split"]["spec"])
    if has_evaluation:
        return splits.SplitSpec("none")
    if configured.by in ("time", "last"):
        return replace(configured, time_format=configured.time_format or time_format)
    return configured


@dataclass
class _Guess:
    """What the rows of the training files tell about their columns; looked at only if it is needed."""

    names: Sequence[str]
    layout: Layout
    labels: Sequence[str]
    weight: str | None
    known: Sequence[str] | None
    options: preparation.Options
    notation: Notation
    rows: dict[str, list[Rows]] = field(default_factory=dict)  # those that were looked at, by file
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def _profiles(self) -> dict[str, profiles.Profile]:
        cache = preparation.cache_folder(self.options.cache)
        looked = profiles.profile_files(
            self.names,
            self.layout,
            cache=cache,
            notation=self.notation,
            labels=self.labels,
            keep=self.rows,
            tell=self.options.tell,
        )
        first = next(iter(looked.values()))  # all have the same number of rows
        preparation.check_bad(first.num_bad, [first.first_bad], self.options.max_bad_rows)
        if not first.num_rows:
            raise DataError(f"there is no row in {self.names[0]} to infer the features from")
        return looked

    @functools.cached_property
    def _first_rows(self) -> dict[str, profiles.Profile]:
        return profiles.profile_first_rows(self.names, self.layout)

    def targets(
        self,
        task: Task | None,
        num_classes: int | None,
        vocabulary: Vocabulary | None,
        recorded: Mapping[str, Any],
    ) -> dict[str, label_guess.Label]:
        """The labels as the configuration or the run describes them, or else guessed."""
        targets: dict[str, label_guess.Label] = {}
        for name in self.labels:
            known = _recorded_label(recorded, name, self.labels)
            described = _described_label(task, num_classes, vocabulary, known, self.notation.decimal_mark)
            targets[name] = described or self._target(name, task, num_classes)
        label_guess.require_two_classes(targets)
        return label_guess.with_units(targets, recorded.get("units", {}), self.unit)

    def _target(self, label: str, task: Task | None, num_classes: int | None) -> label_guess.Label:
        if self.known is None:
            return label_guess.Label("binary")
        decimal_marks.check(self._profiles, [label], self.layout)
        profile = self._profiles[label]
        if profile.kind == "strings" and profile.spellings:
            self.warnings += (contents.spelling_warning(f"label {label}", profile.spellings),)
        return label_guess.guess(profile, task=task, num_classes=num_classes)

    def _check_label(self, label: str, task: Task) -> None:
        """Raises ConfigError if a label cannot have the task of the configuration, or its numbers two readings."""
        decimal_marks.check(self._profiles, [label], self.layout)
        label_guess.check(self._profiles[label], task)
        if how := label_guess.how_read(self._profiles[label]):
            self.notes += (f"label {label}: {task}; {how}",)

    def check_numbers(
        self, specs: Mapping[str, ColumnSpec], recorded: Mapping[str, Any], split: splits.SplitSpec
    ) -> None:
        """Checks the columns that a new run reads as plain numbers.

        Of a configuration that describes all of them, the first rows of the files decide whether to look at all.

        Raises:
          ConfigError: a column has two readings, or a binary label many numbers.
        """
        if self.known is None or recorded:
            return
        self._check_times(split)
        if "_profiles" in vars(self):
            self._check_numbers(self._profiles, specs)
            return
        try:
            self._check_numbers(self._first_rows, specs)
        except ConfigError:
            self._check_numbers(self._profiles, specs)

    def _check_times(self, split: splits.SplitSpec) -> None:
        """Raises ConfigError if numbers by which a split orders rows have two readings: it reads plain ones."""
        if split.by not in ("time", "last") or split.time_format is not None or not self.layout.is_text:
            return
        assert split.column is not None
        if self.notation.decimal_mark is None:
            decimal_marks.check(self._first_rows, [split.column], self.layout)
        text = self._first_rows[split.column].two_ways
        if self.notation.decimal_mark == "," and text is not None:
            message = (
                f"{split.column} has {text!r}, which a split reads with a decimal point; write it without separators"
            )
            raise ConfigError([Problem(f"{splits.KEY}.column", message)])

    def _check_numbers(self, looked: Mapping[str, profiles.Profile], specs: Mapping[str, ColumnSpec]) -> None:
        for spec in specs.values():
            if spec.column not in looked or spec.dtype != "float32" or spec.vocabulary is not None:
                continue
            if spec.part is None and spec.decimal_mark is None:
                decimal_marks.check(looked, [spec.column], self.layout)
            is_binary = spec.is_label and spec.num_classes == 2
            if is_binary and looked[spec.column].num_values > label_guess.FEW_CLASSES:
                label_guess.check(looked[spec.column], "binary")

    def unit(self, key: str, column: str, decimal_mark: str) -> str:
        """The unit of a column in the training files; empty for none.

        Raises:
          ConfigError: it has several; names the key.
        """
        if self.known is None or column not in self.known or not self._may_be_text(column):
            return ""
        units = self._profiles[column].units.get(decimal_mark, {})
        if len(units) > 1:
            values = " and ".join(map(repr, units.values()))
            message = f"must be set: column {column!r} has {values}; rows with another unit are malformed then"
            raise ConfigError([Problem(key, message)])
        return next(iter(units), "")

    def _may_be_text(self, column: str) -> bool:
        schema = formats.schema(self.names[:1], self.layout)
        assert schema is not None
        kind = schema.field(column).type
        return not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))

    def features(
        self, num_buckets: int | None, task: Task | None
    ) -> tuple[dict[str, FeatureSpec], list[dict[str, Any]]]:
        """The inferred features, and rows to display them.

        Args:
          task: as the configuration says, which is checked; None: guessed, or described by a vocabulary.
        """
        if self.known is None:
            message = "is required for TFRecord files, whose records have no schema"
            raise ConfigError([Problem("data.features", message)])
        if task is not None:
            self._check_label(self.labels[0], task)
        indexes = formats.index_columns(self.names, self.layout)
        proposed = proposals.propose(self._profiles.values(), (*self.labels, self.weight), indexes)
        used = [each.profile.column for each in proposed.values() if each.feature is not None]
        decimal_marks.check(self._profiles, used, self.layout)
        features = proposals.features(proposed, num_buckets)
        if not features:
            message = f"cannot be inferred: {proposals.nothing_left(proposed, self.notation)}"
            raise ConfigError([Problem("data.features", message)])
        self.warnings += tuple(proposals.warnings(proposed, self.notation))
        self.notes += tuple(filter(None, [proposals.index_note(proposed)]))
        self.notes += tuple(proposals.leak_notes(proposed))
        return features, [each.row(name) for name, each in proposed.items()]
