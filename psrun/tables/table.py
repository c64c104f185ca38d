"""Examples in files of columns: CSV and TSV, Parquet, Arrow IPC, TFRecord."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import tensorflow as tf

from psrun.data import loading as data_labels
from psrun.data import storage
from psrun.data.lists import ENDS
from psrun.data.loading import LabelVocabulary
from psrun.data.source import Feature, Task
from psrun.errors import ConfigError, DataError, Problem
from psrun.tables import (
    feature_spec,
    formats,
    guess,
    header,
    later_data,
    notations,
    preparation,
    splits,
    table_features,
    text,
)
from psrun.tables.feature_spec import FeatureSpec
from psrun.tables.guess import Features, Labels, TrainingFiles
from psrun.tables.label_guess import Label, LabelKeys
from psrun.tables.later_data import Differences
from psrun.tables.notations import Notation
from psrun.tables.preparation import PreparedSet
from psrun.tables.prepared_rows import PreparedRows
from psrun.tables.rows import LayoutKeys
from psrun.tables.splits import SplitSpec
from psrun.tables.table_reader import WEIGHT, HeldOutRows, RowsToPredict, TableReader
from psrun.tables.table_source import TableSource

CHECKED_BY = "psrun.tables.header.problems"  # before TensorFlow is imported; see `psrun.data.source.DataSource`


def Table(  # noqa: N802 - configurations and recorded runs name the source so
    *,
    path: str,
    label: str | Sequence[str] | None,
    weight: str | None = None,
    eval_path: str | None = None,
    split: Mapping[str, Any] | float | None = None,
    task: Task | None = None,
    num_classes: int | None = None,
    label_vocabulary: LabelVocabulary | None = None,
    features: Mapping[str, Any] | None = None,
    exclude: Sequence[str] | None = None,
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
) -> TableSource:
    """Rows of files that name their columns, all of one format, gzipped where names of text or TFRecord end in .gz.

    A row with a wrong number of fields, without a value, or with one that is not what its column holds is malformed.
    Rows without a label are left out. The rows are prepared once (see `psrun.tables.preparation`).

    Args:
      path: files to train on: one, a folder, or a pattern with * ? and [].
      label: its column: 0 or 1 (binary), an integer from 0 to num_classes - 1 (multiclass), a number (regression), or
        one of `label_vocabulary`. Or several columns, each binary or a regression: labels are a dict by column. None:
        each row is an interaction and has the label 1, for models that learn from no label.
      weight: the column with the weights of the examples, numbers of 0 or more; None for none. It is not a feature.
      eval_path: the same as `path` to evaluate on; None: `split` says which rows of `path` are evaluation examples.
      split: the keys of `splits.SplitSpec`, or a fraction; None: all rows of `path` are training examples.
      task: binary, multiclass or regression; None: as `recorded`, or guessed from the labels.
      label_vocabulary: the values of labels in the order of the classes, all strings or all integers; None where they
        are class numbers, or guessed.
      features: by name, the options of `feature_spec.FeatureSpec`; None: as `recorded`, or guessed from all rows.
      exclude: columns that are no features of the guess; None for none.
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
      list_ends: by feature, the end of longer lists that the model reads.
      run_folder: for vocabularies that are too long for run.json; None: there is none.
      predicting: whether the evaluation examples are only predicted: these need no label and no weight, malformed rows
        stay among them, and `rows_to_predict` describes them.
      tell: called repeatedly during preparation with the progress.

    Raises:
      ConfigError: an option cannot be, or names a column that is not there.
      DataError: there are no such files, one cannot be read to its end or has other columns than the first, there are
        more malformed rows, or no training examples.
    """
    names = header.label_names(label)
    if label is not None and not names:
        raise ConfigError([Problem("data.label", "is [], must be a column, or several different ones, or null")])
    keys = _Keys(
        path,
        eval_path,
        split,
        LayoutKeys(format, delimiter, columns, quoted, encoding),
        LabelKeys(names, task, num_classes, label_vocabulary, weight),
        features,
        tuple(exclude or ()),
        num_buckets,
        Notation(decimal_mark, time_format),
    )
    options = preparation.Options(max_bad_rows, cache, tell)
    run = _Run(recorded or {}, list_ends or {}, run_folder, predicting)
    _check(keys, options)
    return _source(_read(keys, options, run), keys, run)


@dataclass(frozen=True)
class _Keys:
    """The keys of `data` by subject; see `Table`."""

    path: str
    eval_path: str | None
    split: Mapping[str, Any] | float | None
    layout: LayoutKeys
    labels: LabelKeys
    features: Mapping[str, Any] | None
    exclude: tuple[str, ...]
    num_buckets: int | None
    notation: Notation


@dataclass(frozen=True)
class _Run:
    """What psrun says of the run that reads the table; see `Table`."""

    recorded: Mapping[str, Any]
    list_ends: Mapping[str, str]
    folder: Path | None
    predicting: bool


@dataclass(frozen=True)
class _Examples:
    """The prepared rows of all files.

    Attributes:
      training: of the training files, in two parts if they are split.
      evaluation: of the evaluation files; None: there are none.
      to_predict: what these rows are if they are only predicted; None if they are evaluated.
      held_out: where the rows are that the split holds out; None without a split.
    """

    training: PreparedSet
    evaluation: PreparedSet | None = None
    to_predict: RowsToPredict | None = None
    held_out: HeldOutRows | None = None

    @property
    def sets(self) -> list[PreparedSet]:
        if self.evaluation is None:
            return [self.training]
        return [self.training, self.evaluation]

    @property
    def training_rows(self) -> PreparedRows:
        return self.training.parts["train"]

    @property
    def evaluation_rows(self) -> PreparedRows | None:
        """The rows of the evaluation files, or else those that the split holds out; None if there are none."""
        if self.evaluation is not None:
            return self.evaluation.rows
        return self.training.parts.get("eval")

    @property
    def rows_to_predict(self) -> RowsToPredict | HeldOutRows | None:
        """Where the evaluation examples are in the files; None if they are evaluated, or there are none."""
        if self.evaluation is not None:
            return self.to_predict
        return self.held_out

    @property
    def num_unlabeled(self) -> int:
        return sum(each.num_unlabeled for each in self.sets)


@dataclass(frozen=True)
class _Read:
    """What was read from the files.

    Attributes:
      files: the training files, then the evaluation files.
      weight: the column with the weights of the examples; None for none.
    """

    files: Sequence[str]
    num_train_files: int
    labels: Labels
    weight: str | None
    features: Features
    split: SplitSpec
    examples: _Examples


@dataclass(frozen=True)
class _Findings:
    """What a step has found: facts for run.json, and lines for the user."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _check(keys: _Keys, options: preparation.Options) -> None:
    """Raises ConfigError if keys contradict each other, or have values that cannot be."""
    found = [*_problems_of_label_columns(keys.labels)]
    found += text.problems(keys.layout)
    found += _problems_of_tasks(keys.labels)
    found += _problems_of_numbers(keys.layout.format, keys.num_buckets, options.max_bad_rows)
    found += notations.problems(keys.notation.decimal_mark, keys.notation.time_format)
    _require_none(found)


def _require_none(problems: Sequence[Problem]) -> None:
    """Raises ConfigError if there are problems."""
    if problems:
        raise ConfigError(problems)


def _problems_of_label_columns(keys: LabelKeys) -> Iterator[Problem]:
    """Problems of the names of labels, and of keys that only a single label may have."""
    if len(set(keys.names)) < len(keys.names):
        yield Problem("data.label", f"is {list(keys.names)}, must be a column, or several different ones")
    if len(keys.names) == 1:
        return
    message = "is inferred for each of several labels; set it to null"
    if not keys.names:
        message = "describes labels, but data.label is null; set it to null, or data.label to a column"
    single = {"task": keys.task, "num_classes": keys.num_classes, "label_vocabulary": keys.vocabulary}
    for key, value in single.items():
        if value is not None:
            yield Problem(f"data.{key}", message)


def _problems_of_tasks(keys: LabelKeys) -> Iterator[Problem]:
    """Problems of the keys that describe a single label."""
    tasks = get_args(Task)
    if keys.task is not None and keys.task not in tasks:
        yield Problem("data.task", f"is {keys.task!r}, must be one of {', '.join(tasks)}")
    has_classes = keys.num_classes is not None and keys.num_classes >= 2
    if keys.task == "multiclass" and keys.vocabulary is None and not has_classes:
        yield Problem("data.num_classes", f"is {keys.num_classes}, must be 2 or more with data.task=multiclass")
    if keys.task != "multiclass" and keys.num_classes is not None:
        yield Problem("data.num_classes", "requires data.task=multiclass; remove it")
    if keys.vocabulary is not None and keys.task is not None:
        yield from data_labels.task_problems(keys.task, keys.num_classes, keys.vocabulary)


def _problems_of_numbers(format: str | None, num_buckets: int | None, max_bad_rows: int) -> Iterator[Problem]:
    if format is not None and format not in formats.FORMATS:
        yield Problem("data.format", f"is {format!r}, must be one of {', '.join(formats.FORMATS)}, or null")
    if num_buckets is not None and num_buckets < 1:
        yield Problem("data.num_buckets", f"is {num_buckets}, must be 1 or more")
    if max_bad_rows < 0:
        yield Problem("data.max_bad_rows", f"is {max_bad_rows}, must be 0 or more")


def _read(keys: _Keys, options: preparation.Options, run: _Run) -> _Read:
    """Finds the files and what their columns are, and prepares their rows."""
    described: Mapping[str, FeatureSpec] = {}
    if keys.features is not None:
        described = feature_spec.read(keys.features, keys.notation)
    training, evaluation = _files(keys, options, overlapping=run.predicting)
    split = _split(keys, run.recorded, has_evaluation=bool(evaluation))
    splits.check_columns(split, training.columns, training.first)
    labels = guess.labels(training, keys.labels, run.recorded)
    features = _features(training, described, keys, run)
    reader = _reader(training, features, labels, keys)
    if not run.recorded:
        guess.check_numbers(training, reader.specs, split)
    reader = replace(reader, rows=training.rows)
    prepared = reader.split(training.names, options, split, run.recorded)
    _require_rows(prepared, training.names)
    examples = _with_evaluation(prepared, evaluation, reader, options, run)
    if run.predicting and split.by != "none":
        held_out = reader.held_out(training.names, options, split, run.recorded)
        examples = replace(examples, held_out=held_out)
    names = [*training.names, *evaluation]
    return _Read(names, len(training.names), labels, keys.labels.weight, features, split, examples)


def _files(keys: _Keys, options: preparation.Options, *, overlapping: bool) -> tuple[TrainingFiles, list[str]]:
    """The training files and the names of the evaluation files; a file may be both only if they are `overlapping`.

    Raises:
      ConfigError: it is both, or a label or the weight is no column.
      DataError: there are no such files, or the first cannot be read.
    """
    train = storage.find(keys.path)
    evaluation: list[str] = []
    if keys.eval_path:
        evaluation = storage.find(keys.eval_path)
    paths = {storage.canonical_name(name) for name in train}
    both = [name for name in evaluation if storage.canonical_name(name) in paths]
    if both and not overlapping:
        raise ConfigError([Problem("data.eval_path", f"{both[0]} is also a training file; use separate files")])
    layout = formats.layout([*train, *evaluation], keys.layout, folders=(keys.path, keys.eval_path))
    columns = formats.columns(train[0], layout)
    names = keys.labels.names
    _require_none(header.column_problems({}, names, keys.labels.weight, columns, layout, train[0]))
    return TrainingFiles(train, layout, columns, names, keys.notation, options), evaluation


def _split(keys: _Keys, recorded: Mapping[str, Any], *, has_evaluation: bool) -> SplitSpec:
    """The split as configured, or as the run recorded it; its time format is by default the one of all times."""
    configured = splits.read(keys.split)
    if "split" in recorded:
        return splits.read(recorded["split"]["spec"])
    if has_evaluation:
        return SplitSpec("none")
    if configured.by in ("time", "last") and not configured.time_format:
        return replace(configured, time_format=keys.notation.time_format)
    return configured


def _features(training: TrainingFiles, described: Mapping[str, FeatureSpec], keys: _Keys, run: _Run) -> Features:
    """The features as the configuration describes them, else as the run recorded them, else guessed."""
    found = Features(described)
    names = keys.labels.names
    wrong = header.problems_of_excluded(
        keys.exclude, names, keys.labels.weight, training.columns, training.layout, training.first,
        has_features=bool(described),
    )  # fmt: skip
    _require_none([*wrong])
    if not described and run.recorded:
        found = Features(feature_spec.recorded(run.recorded, run.folder))
        _require_excluded(keys.exclude, found.specs)
    if not found.specs:
        found = guess.features(training, keys.labels, keys.num_buckets, keys.exclude)
    specs = feature_spec.with_ends(found.specs, run.list_ends, run.recorded)
    unit_of = functools.partial(guess.unit, training)
    return replace(found, specs=feature_spec.with_units(specs, run.recorded.get("units", {}), unit_of))


def _require_excluded(exclude: Sequence[str], recorded: Mapping[str, FeatureSpec]) -> None:
    """Raises ConfigError if a recorded feature, which a resumed run keeps, is of an excluded column."""
    for name, spec in recorded.items():
        if (spec.column or name) in exclude:
            message = f"has {spec.column or name!r}, which the run was trained with; train a new run without it"
            raise ConfigError([Problem("data.exclude", message)])


def _reader(training: TrainingFiles, features: Features, labels: Labels, keys: _Keys) -> TableReader:
    """The reader of the columns with features, labels and weights.

    Raises:
      ConfigError: a column is not there, or is used for two things.
    """
    weight = keys.labels.weight
    decimal_mark = keys.notation.decimal_mark
    columns = header.columns_of(features.specs, training.layout, decimal_mark)
    problems = header.column_problems(
        columns, keys.labels.names, weight, training.columns, training.layout, training.first
    )
    _require_none(problems)
    reader = TableReader(columns, training.layout, training.first, training.columns)
    return reader.with_targets(labels.by_name, weight, decimal_mark)


def _with_evaluation(
    prepared: PreparedSet, evaluation: Sequence[str], reader: TableReader, options: preparation.Options, run: _Run
) -> _Examples:
    """The prepared training rows, with the rows of the evaluation files, which this prepares."""
    if not evaluation:
        return _Examples(prepared)
    if run.predicting:
        evaluated, to_predict = reader.predicting(evaluation, options)
        return _Examples(prepared, evaluated, to_predict)
    evaluated = reader.prepared(evaluation, options)
    _require_rows(evaluated, evaluation)
    return _Examples(prepared, evaluated)


def _require_rows(prepared: PreparedSet, names: Sequence[str]) -> None:
    """Raises DataError if no row of the files is an example."""
    if prepared.num_examples:
        return
    message = f"there is no row in {names[0]}"
    if len(names) > 1:
        message += " and the others"
    if prepared.num_unlabeled:
        message += ", but rows without a label"
    raise DataError(message)


def _source(read: _Read, keys: _Keys, run: _Run) -> TableSource:
    """The data source of what was read, with all that the steps have found."""
    examples = read.examples
    specs = read.features.specs
    recorded_scales = run.recorded.get("scales", {})
    rows = _row_findings(examples, specs)
    labels = _label_findings(read.labels, keys)
    split = _split_findings(examples, read.split, run)
    inferred = _feature_findings(read.features, keys, run)
    features = table_features.make(specs, keys.num_buckets, examples.training.scales, run.folder)
    features = table_features.with_scales(features, recorded_scales)
    label_scales = _label_scales(read, recorded_scales)
    weights = _weight_findings(examples, read.weight)
    differences = _difference_findings(read, features, run)
    facts = {
        "num_train_files": read.num_train_files,
        "num_eval_files": len(read.files) - read.num_train_files,
        **rows.facts,
        **labels.facts,
        **split.facts,
        **inferred.facts,
        **_unit_facts(read, keys),
        "scales": {**table_features.scales(features), **label_scales},
        **weights.facts,
        **differences.facts,
    }
    notes = (*inferred.notes, *labels.notes, *split.notes, *differences.notes)
    warnings = [*rows.warnings, *split.warnings, *weights.warnings]
    warnings += [*labels.warnings, *inferred.warnings]
    warnings += table_features.unused(features)
    warnings += _unlabeled_warnings(read, run)
    warnings += _class_warnings(read)
    warnings += differences.warnings
    source = _without_labels(read, features, _Findings(facts, notes, tuple(warnings)), differences.warnings)
    return _with_labels(source, read.labels, label_scales)


def _without_labels(
    read: _Read, features: Mapping[str, Feature], found: _Findings, differences: tuple[str, ...]
) -> TableSource:
    """The source without what depends on the number of labels and on their tasks.

    Args:
      found: all findings; `differences`: the warnings about rows that differ, which are among these.
    """
    examples = read.examples
    num_eval_examples = 0
    if examples.evaluation_rows is not None:
        num_eval_examples = examples.evaluation_rows.num_examples
    return TableSource(
        features=features,
        training_rows=examples.training_rows,
        evaluation_rows=examples.evaluation_rows,
        num_train_examples=examples.training_rows.num_examples,
        num_eval_examples=num_eval_examples,
        label_columns=read.labels.names,
        has_labels=bool(read.labels.names),
        weight_column=read.weight,
        files=read.files,
        facts=found.facts,
        notes=found.notes,
        warnings=found.warnings,
        differences=differences,
        guessed=read.features.guessed,
        rows_to_predict=examples.rows_to_predict,
    )


def _with_labels(source: TableSource, labels: Labels, scales: Mapping[str, Mapping[str, float]]) -> TableSource:
    """The source with what models need to know of the labels; of several, a model decides on losses and metrics."""
    if not labels.names:
        return replace(source, task="binary")
    source = replace(source, classes=labels.vocabularies)
    label = labels.single
    if label is None:
        return replace(source, label_tasks=labels.tasks, label_scales=scales)
    source = replace(source, task=label.task, label_vocabulary=label.label_vocabulary)
    if label.task == "multiclass":
        return replace(source, num_classes=label.num_classes or 1)
    if label.task == "regression":
        scale = scales[labels.names[0]]
        return replace(source, label_mean=scale["mean"], label_deviation=scale["deviation"])
    return source


def _row_findings(examples: _Examples, specs: Mapping[str, FeatureSpec]) -> _Findings:
    """How many rows are malformed, have no label or have truncated lists."""
    facts: dict[str, Any] = {"num_bad_rows": sum(each.num_bad for each in examples.sets)}
    warnings = []
    for each in examples.sets:
        if each.num_bad:
            warnings.append(f"{each.num_bad:,} malformed rows skipped, the first: {each.bad[0]}")
    if examples.num_unlabeled:
        facts["num_unlabeled_rows"] = examples.num_unlabeled
    num_truncated = {}
    for name in examples.training.num_truncated:  # the features that are lists
        num_truncated[name] = sum(each.num_truncated.get(name, 0) for each in examples.sets)
    if num_truncated:
        facts["num_truncated_rows"] = num_truncated
    ends = feature_spec.ends_of(specs)
    if ends:
        facts[feature_spec.LIST_ENDS] = ends
    for name, count in num_truncated.items():
        if count:
            most = examples.training_rows.columns[name].max_values
            kept = specs[name].keep or ENDS[0]
            message = f"{name}: {count:,} rows have more than max_values={most} values"
            warnings.append(f"{message}; the {kept} values are kept")
    return _Findings(facts, warnings=tuple(warnings))


def _unlabeled_warnings(read: _Read, run: _Run) -> list[str]:
    """A line about rows without a label, unless a note on a label names them, or the rows are only predicted."""
    count = read.examples.num_unlabeled
    are_named = any(label.num_missing for label in read.labels.by_name.values())
    if run.predicting or are_named or not count:
        return []
    return [f"{count:,} rows without a label are left out"]


def _label_findings(labels: Labels, keys: _Keys) -> _Findings:
    """What the labels are, and where the configuration does not say it, what a resumed run needs to know of them."""
    notes = []
    for name, label in labels.by_name.items():
        if label.note:
            notes.append(f"label {name}: {label.note}")
    facts: dict[str, Any] = {}
    if labels.names and keys.labels.task is None:
        records = {name: label.record for name, label in labels.by_name.items()}
        facts["label"] = records[labels.names[0]]
        if len(records) > 1:
            facts["labels"] = records
    return _Findings(facts, tuple(notes), labels.warnings)


def _split_findings(examples: _Examples, spec: SplitSpec, run: _Run) -> _Findings:
    """How the training files are split, and what the user of a new run should know of it.

    Raises:
      ConfigError: no rows are on one side.
    """
    prepared = examples.training
    facts = {"split": {"spec": splits.options(spec), **prepared.facts}}
    if spec.by == "none":
        return _Findings(facts)
    num_rows = prepared.num_examples
    num_train = examples.training_rows.num_examples
    if num_train in (0, num_rows):
        which = "train" if num_train == 0 else "evaluate"
        reason = splits.size_reason(spec, prepared.facts, num_rows)
        message = f"leaves none of {num_rows:,} rows to {which} on: {reason}"
        message += "; use another fraction, seed or column, data.eval_path=FILE, or data.split.by=none"
        raise ConfigError([Problem(splits.KEY, message)])
    if run.recorded:
        return _Findings(facts)
    num_held_out = num_rows - num_train
    note = splits.sentence(spec, prepared.facts, num_held_out, num_rows)
    warnings = splits.warnings(spec, prepared.facts, num_held_out, num_rows)
    return _Findings(facts, (note,), tuple(warnings))


def _feature_findings(features: Features, keys: _Keys, run: _Run) -> _Findings:
    """What a resumed run needs to know of features that the configuration does not describe, and what a user should."""
    if keys.features is not None:
        return _Findings()
    facts = {"features": feature_spec.record(features.specs, run.folder)}
    if not features.guessed:
        return _Findings(facts)
    label = "null"
    if keys.labels.names:
        label = keys.labels.names[0]
    command = shlex.join(["psrun", "data", "inspect", keys.path, "--label", label, *_as_options(keys)])
    advice = f"to edit the features: {command} --write conf/data/NAME.yaml"
    return _Findings(facts, (advice, *features.notes), features.warnings)


def _as_options(keys: _Keys) -> list[str]:
    """The options of `psrun data inspect` that read the files as these keys do."""
    columns = keys.layout.columns
    values = {
        "--exclude": ",".join(keys.exclude) or None,
        "--format": keys.layout.format,
        "--columns": None if columns is None else ",".join(columns),
        "--delimiter": keys.layout.delimiter,
        "--encoding": None if keys.layout.encoding == "utf-8" else keys.layout.encoding,
        "--decimal-mark": keys.notation.decimal_mark,
        "--time-format": keys.notation.time_format,
    }
    options: list[str] = []
    for name, value in values.items():
        if value is not None:
            options += [name, value]
    return options


def _unit_facts(read: _Read, keys: _Keys) -> dict[str, Any]:
    """The units of the features and labels that the configuration describes."""
    described: dict[str, FeatureSpec | Label] = {}
    if keys.features is not None:
        described |= read.features.specs
    if keys.labels.task is not None:
        described |= read.labels.by_name
    units: dict[str, str] = {}
    for name, each in described.items():
        if each.decimal_mark is not None:
            units[name] = each.unit or ""
    if not units:
        return {}
    return {"units": units}


def _label_scales(read: _Read, recorded: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The mean and the deviation of each label to regress: a model keeps them, whatever the files have later.

    Args:
      recorded: by the run, and hold.
    """
    scales: dict[str, dict[str, float]] = {}
    for name in read.labels.to_regress:
        scale = read.examples.training.scales[name]
        scales[name] = recorded.get(name, {"mean": scale.mean, "deviation": scale.deviation})
    return scales


def _weight_findings(examples: _Examples, weight: str | None) -> _Findings:
    """The mean weight of the training examples.

    Raises:
      ConfigError: it is 0.
    """
    if weight is None:
        return _Findings()
    mean = examples.training.scales[weight].mean
    if mean == 0:
        raise ConfigError([Problem(WEIGHT, "every training example has the weight 0; choose another column")])
    warnings = []
    if examples.evaluation is not None:
        evaluated = examples.evaluation.scales.get(weight)
        if evaluated is not None and evaluated.mean == 0:
            warnings.append(f"{WEIGHT}: every evaluation example has the weight 0, so its metrics mean nothing")
    return _Findings({"mean_weight": mean}, warnings=tuple(warnings))


def _class_warnings(read: _Read) -> list[str]:
    """Lines about training or evaluation examples that all have the same class."""
    examples = read.examples
    label = read.labels.single
    if label is None or label.task == "regression":
        return []
    if examples.to_predict is not None:  # whose labels, if there are any, no metric uses
        return []
    warnings = []
    training = examples.training_rows
    value = _only_class(training, examples.training.label_ranges.get("train"), label)
    if value is not None:
        what = f"all {training.num_examples:,} training examples have the label {value}"
        warnings.append(f"{what}: there is nothing to learn")
    evaluated = examples.evaluation_rows
    label_range = examples.training.label_ranges.get("eval")
    if examples.evaluation is not None:
        label_range = examples.evaluation.label_ranges.get("train")
    if evaluated is None:
        return warnings
    value = _only_class(evaluated, label_range, label)
    if value is not None:
        what = f"all {evaluated.num_examples:,} evaluation examples have the label {value}"
        warnings.append(f"{what}: metrics that compare classes, such as AUC, mean nothing")
    return warnings


def _only_class(rows: PreparedRows, label_range: Sequence[float] | None, label: Label) -> str | None:
    """The class of all rows, for display; None if they have several classes, or are fewer than two rows."""
    if label_range is None or label_range[0] != label_range[1] or rows.num_examples < 2:
        return None
    number = int(label_range[0])
    if label.label_vocabulary is None:
        return str(number)
    return repr(label.label_vocabulary[number])


def _difference_findings(read: _Read, features: Mapping[str, Feature], run: _Run) -> _Findings:
    """How rows differ from the rows that the run was trained on: in the evaluation files or on the held-out side, and,
    of a run that goes on, in the training files.
    """
    examples = read.examples
    labels = read.labels
    columns = _with_numbers(features, labels)
    trained = run.recorded.get("trained_on")
    found: dict[str, Differences] = {}
    if trained is None:  # a new run
        trained = later_data.training_record(examples.training_rows, columns, labels.of_classes)
    elif examples.to_predict is None:
        found["training"] = later_data.differences(
            examples.training_rows,
            columns,
            trained,
            title="training rows",
            label=labels.of_classes,
            class_names=labels.class_names,
        )
    notes: tuple[str, ...] = ()
    evaluated = _evaluation_differences(read, features, trained)
    if evaluated is not None:
        found["evaluation"] = evaluated
        if not run.recorded:
            notes = evaluated.notes
    warnings: list[str] = []
    for each in found.values():
        warnings += each.warnings
    facts = {"trained_on": trained, "compared": {name: each.facts for name, each in found.items()}}
    return _Findings(facts, notes, tuple(warnings))


def _evaluation_differences(
    read: _Read, features: Mapping[str, Feature], trained: Mapping[str, Any]
) -> Differences | None:
    """How the evaluation rows differ from the rows of the training; None if there are none.

    Args:
      trained: `later_data.training_record` of the run.
    """
    examples = read.examples
    rows = examples.evaluation_rows
    if rows is None:
        return None
    to_predict = examples.to_predict
    columns = _with_numbers(features, read.labels)
    label = read.labels.of_classes
    class_names = read.labels.class_names
    if to_predict is None:
        is_held_out = examples.evaluation is None
        return later_data.differences(
            rows,
            columns,
            trained,
            title="evaluation rows",
            label=label,
            class_names=class_names,
            is_sample=is_held_out,
            is_later=is_held_out and read.split.by in ("time", "last"),
        )
    if not to_predict.labeled:
        columns = dict(features)
        label = None
    return later_data.differences(
        rows,
        columns,
        trained,
        title="rows to predict",
        label=label,
        class_names=class_names,
        skipped=to_predict.problems,
    )


def _with_numbers(features: Mapping[str, Feature], labels: Labels) -> dict[str, Feature]:
    """The features, and the labels that are numbers, which are compared as features are."""
    columns = dict(features)
    for name in labels.to_regress:
        columns[name] = Feature((1,), tf.float32)
    return columns
