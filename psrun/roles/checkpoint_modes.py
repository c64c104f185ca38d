"""The modes that work on a checkpoint of a run, which may still be running: evaluate, predict and export."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from pyarrow import parquet
from rich.console import Console
from rich.text import Text

from psrun import files, parts
from psrun.checkpoint import storage, trained_model
from psrun.checkpoint.storage import BEST_ONE, LATEST, Manifest, Store
from psrun.cluster import strategy
from psrun.config.run_config import RunConfig
from psrun.config.schema import did_you_mean
from psrun.data import loading
from psrun.data.source import DataSource, Remarks, evaluation_batches, reads_shards, task_of
from psrun.errors import ConfigError, DataError, Problem, PsrunError, RunFolderError
from psrun.program import batch_checks, embeddings, objective
from psrun.program.batch_checks import BatchChecks, Place, check_spec, data_errors, evaluated
from psrun.program.batches import eval_batch_size, num_eval_batches
from psrun.program.compiled_model import Program
from psrun.results.console import print_folded, shown, warner
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder, is_over
from psrun.roles.chief import Chief
from psrun.roles.table import TaskContext
from psrun.training import evaluators
from psrun.training.evaluators import SHARDS_PER_WORKER, Shards

CLASS = "class"
PROBLEM = "problem"
LABEL = "label"  # the columns of a label and of an output without a name
PREDICTION = "prediction"
_ROWS_PER_GROUP = 65536  # of Parquet: batches of predictions are much smaller
# For each shard a worker builds a data pipeline, at the cost of a few batches. The predictions of a shard are in memory
# as a whole.
_BATCHES_PER_SHARD = 8  # or _EXAMPLES_PER_SHARD, whichever is larger
_EXAMPLES_PER_SHARD = 8192
# What the result of an evaluation follows from, beside the checkpoint. The seed draws candidates.
_OF_EVALUATIONS = ("data", "evaluation", "model", "seed")


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of the output.

    Attributes:
      kept: columns of the input.
      labels, predictions: by the name of their column; the examples are the first axis.
      problems: what is wrong with a malformed row, by its index; it has no label and no prediction.
    """

    kept: pa.Table | None
    labels: Mapping[str, np.ndarray]
    predictions: Mapping[str, np.ndarray]
    problems: Mapping[int, str]

    @property
    def kept_names(self) -> list[str]:
        """The names of the columns of the input."""
        return [] if self.kept is None else self.kept.column_names


@dataclass(frozen=True)
class Layout:
    """What all rows of a file have in common.

    Attributes:
      class_names: of the classes 0, 1, ...; None without names, or if labels are not classes.
      has_problems: whether there is a malformed row, and so a column for what is wrong.
      probabilities: by output, the name of the column of a single probability, such as 'churn=Yes'.
    """

    class_names: Sequence[str] | None = None
    has_problems: bool = False
    probabilities: Mapping[str, str] = field(default_factory=dict)

    def groups(self, rows: Rows) -> dict[str, np.ndarray]:
        """Labels and predictions by name: arrays of shape (rows, values), where a malformed row has meaningless values.

        If classes have names, labels are names, and the name of the most probable class is in `class`, or in
        OUTPUT_class if there are several outputs. A single probability is in a column that names its class.

        Raises:
          ConfigError: two of them have one name.
        """
        labels = {name: _flat(values) for name, values in rows.labels.items()}
        predictions = {}
        for name, values in rows.predictions.items():
            flat = _flat(values)
            predictions[self._column(name, flat)] = flat
        most_probable = {}
        if self.class_names is not None:
            names = np.array(self.class_names)
            has_one_output = len(predictions) == 1
            if has_one_output:
                labels = {name: self._named(names, rows, values) for name, values in labels.items()}
            for name, values in predictions.items():
                if self._is_by_class(values):
                    column = CLASS if has_one_output else f"{name}_{CLASS}"
                    most_probable[column] = names[values.argmax(axis=1)][:, np.newaxis]
        _require_distinct([*labels, *predictions, *most_probable])
        return labels | predictions | most_probable

    def _column(self, output: str, values: np.ndarray) -> str:
        """The name of the column of an output."""
        is_one_probability = values.shape[1] == 1 and values.dtype.kind == "f"
        if not is_one_probability:
            return output
        return self.probabilities.get(output, output)

    def _is_by_class(self, values: np.ndarray) -> bool:
        return self.class_names is not None and values.shape[1] == len(self.class_names) and values.dtype.kind == "f"

    def _named(self, names: np.ndarray, rows: Rows, numbers: np.ndarray) -> np.ndarray:
        numbers = numbers.astype(np.int64)
        numbers[list(rows.problems)] = 0  # placeholders may be no classes
        return names[numbers]

    def table(self, rows: Rows) -> pa.Table:
        """The rows with a column for each value; the values of a group have names or numbers: prediction_0, ...

        Raises:
          ConfigError: two columns have one name.
        """
        groups = self.groups(rows)
        num_rows = len(next(iter(groups.values())))
        is_malformed: np.ndarray = np.zeros(num_rows, bool)
        is_malformed[list(rows.problems)] = True
        columns = []
        if rows.kept is not None:
            columns += list(zip(rows.kept_names, rows.kept.columns))
        for base, values in groups.items():
            for name, column in zip(self._names(base, values), values.T):
                columns.append((name, pa.array(np.ascontiguousarray(column), mask=is_malformed)))
        if self.has_problems:
            columns.append((PROBLEM, pa.array(map(rows.problems.get, range(num_rows)), pa.string())))
        names = [name for name, _ in columns]
        _require_distinct(names, rows.kept_names)
        return pa.table([column for _, column in columns], names)

    def _names(self, base: str, values: np.ndarray) -> list[str]:
        if values.shape[1] == 1:
            return [base]
        suffixes = self.class_names if self._is_by_class(values) else None
        return [f"{base}_{suffix}" for suffix in suffixes or range(values.shape[1])]


Write = Callable[[Rows], None]


@contextlib.contextmanager
def csv_writer(path: Path, layout: Layout) -> Iterator[Write]:
    """Reading the numbers of predictions as what they are, float32 or float64, gives the same bits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        header: list[str] = []

        def write(rows: Rows) -> None:
            table = layout.table(rows)
            if not header:
                header.extend(table.column_names)
                lines.writerow(header)
            lines.writerows(zip(*map(_texts, table.columns)))

        yield write


@contextlib.contextmanager
def parquet_writer(path: Path, layout: Layout) -> Iterator[Write]:
    """A function that appends rows to a Parquet file, in row groups."""
    with contextlib.ExitStack() as stack:
        waiting: list[pa.Table] = []
        writers: list[parquet.ParquetWriter] = []

        def flush() -> None:
            table = pa.concat_tables(waiting)
            if not writers:
                writers.append(stack.enter_context(parquet.ParquetWriter(path, table.schema)))
            writers[0].write_table(table)
            waiting.clear()

        def write(rows: Rows) -> None:
            waiting.append(layout.table(rows))
            if sum(len(table) for table in waiting) >= _ROWS_PER_GROUP:
                flush()

        yield write
        if waiting:
            flush()


@contextlib.contextmanager
def tfrecord_writer(path: Path, layout: Layout) -> Iterator[Write]:
    """A `tf.train.Example` for each row. The values of an output are one feature; what is missing has none."""
    with tf.io.TFRecordWriter(str(path)) as writer:

        def write(rows: Rows) -> None:
            groups = layout.groups(rows)
            kept = {}
            if rows.kept is not None:
                kept = dict(zip(rows.kept_names, map(_features, rows.kept.columns)))
            _require_distinct([*kept, *groups, PROBLEM], kept)
            for index, values in enumerate(zip(*groups.values())):
                features = {name: column[index] for name, column in kept.items() if column[index] is not None}
                if index in rows.problems:
                    features[PROBLEM] = _feature([rows.problems[index]])
                else:
                    features |= {name: _feature(each.tolist()) for name, each in zip(groups, values)}
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

        yield write


WRITERS = {"csv": csv_writer, "parquet": parquet_writer, "tfrecord": tfrecord_writer}


@contextlib.contextmanager
def written(path: Path, file_format: str, layout: Layout) -> Iterator[Write]:
    """A writer of a format of `WRITERS`; the file appears at `path` when it is complete.

    Raises:
      PsrunError: the disk is full or the file cannot be written.
      ConfigError: two columns have one name.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.put_whole(path) as part, WRITERS[file_format](part, layout) as write:
            yield write
    except (OSError, tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) as error:
        raise PsrunError(f"the predictions could not be written to {path}: {error}") from error


def _require_distinct(names: Sequence[str], kept: Collection[str] = ()) -> None:
    """Raises ConfigError if a column has the name of another one."""
    for name, count in Counter(names).items():
        if count == 1:
            continue
        if name in kept:
            message = f"names {name!r}, but a column of the output has that name already; rename it, or leave it out"
            raise ConfigError([Problem("predict.keep", message)])
        message = f"has an output {name!r}, but another column of the predictions has that name; rename the output"
        raise ConfigError([Problem("model", message)])


def _flat(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(len(values), -1)
    if flat.dtype.kind == "S" or flat.dtype.kind == "O":  # strings of TensorFlow
        return np.array([[value.decode(errors="replace") for value in row] for row in flat.tolist()])
    return flat


def _texts(column: pa.ChunkedArray) -> list[str]:
    """The values as CSV has them; a missing one is empty."""
    to_text = _text_of_values(column.type)
    if to_text is None:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        column = column.cast(pa.string())
        to_text = str
    return ["" if value is None else to_text(value) for value in column.to_pylist()]


def _text_of_values(kind: pa.DataType) -> Callable[[Any], str] | None:
    """The text of a value of a type; None for the types that Arrow casts to text."""
    if kind == pa.float64():
        return repr
    if pa.types.is_floating(kind):
        return "{:.9g}".format
    if pa.types.is_nested(kind):
        return functools.partial(json.dumps, default=str)
    if _is_binary(kind):
        return functools.partial(bytes.decode, errors="backslashreplace")
    return None


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _features(column: pa.ChunkedArray) -> list[tf.train.Feature | None]:
    """The values of a kept column as TFRecord has them; None where one is missing."""
    kind = column.type
    values = column.to_pylist()
    has_numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (has_numbers or _is_binary(kind)) or kind == pa.uint64():  # larger than an int64
        missing = column.is_null().to_pylist()
        values = [None if is_missing else text for is_missing, text in zip(missing, _texts(column))]
    return [None if value is None else _feature([value]) for value in values]


def _feature(values: list[Any]) -> tf.train.Feature:
    if isinstance(values[0], str | bytes):
        texts = [value.encode() if isinstance(value, str) else value for value in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def run_evaluate(run_config: RunConfig, context: TaskContext) -> None:
    """Evaluates, writes a file in evaluations/ of the run folder (`Evaluation.keep`) and reports the result.

    Raises:
      PsrunError: there is no such checkpoint, or it cannot be evaluated.
    """
    with saved_program(run_config, context, state="evaluating") as saved:
        evaluator = evaluators.make(saved.program)
        assert evaluator is not None
        result = evaluators.timed(evaluator, saved.checkpoint.step, saved.chief.pulse.advance)
        raw = saved.program.config.raw
        settings = {name: raw[name] for name in _OF_EVALUATIONS}
        path = result.keep(saved.folder.evaluations, storage.digest(saved.checkpoint.files), settings)
        saved.chief.reporter.emit("evaluation", **result.recorded, path=str(path))
        if result.undefined is not None:
            saved.chief.reporter.warn(result.undefined, step=result.step)
        for text in result.warnings:
            saved.chief.reporter.warn(text, step=result.step)


def _report_differences(source: DataSource, folder: RunFolder, reporter: Reporter, mode: str) -> None:
    """Warns where data differs from what the run was trained on, and records it in run.json if the run is over."""
    for text in Remarks.of(source).differences:
        reporter.warn(text)
    compared = source.facts.get("compared")
    if compared and is_over(folder.stored()):
        with contextlib.suppress(RunFolderError):  # a folder that may only be read
            folder.emit("later_data", **{mode: compared})


@dataclass(frozen=True)
class SavedProgram:
    """A program whose model has the values of a checkpoint.

    Attributes:
      folder: of the run that has the checkpoint.
    """

    program: Program
    checkpoint: Manifest
    chief: Chief
    folder: RunFolder


def _source_of(run_config: RunConfig, folder: RunFolder, chief: Chief) -> tuple[DataSource, RunConfig]:
    """The data of the run in `folder`, and the configuration with the numbers that follow from the data.

    Reports how the data differ from what the run was trained on.
    """
    source = loading.load_source(run_config, folder.data_facts(), chief.preparing, folder.root.path)
    _report_differences(source, folder, chief.reporter, run_config.mode)
    return source, loading.planned(run_config, source)


@contextmanager
def source_here(run_config: RunConfig, context: TaskContext) -> Iterator[tuple[Chief, DataSource, RunConfig]]:
    """This process as a chief without a cluster, the data, and the configuration with the numbers that follow."""
    reporter = Reporter([context.console], started_s=context.started_s)
    with Chief(run_config, replace(context, topology=None), reporter) as chief:
        yield (chief, *_source_of(run_config, context.folder, chief))


@contextmanager
def saved_program(run_config: RunConfig, context: TaskContext, *, state: str) -> Iterator[SavedProgram]:
    """Connects to the cluster and restores the checkpoint that the configuration names; ends the servers afterwards.

    Args:
      state: the state of this process in its heartbeat.

    Raises:
      PsrunError: there is no such checkpoint, or a task was lost.
    """
    assert run_config.resume is not None
    folder = RunFolder(Path(run_config.resume))
    sinks = [context.console]
    if context.topology is not None:
        sinks = [context.folder, context.console]
    reporter = Reporter(sinks, started_s=context.started_s)
    with Chief(run_config, context, reporter) as chief:
        strategy.prepare(run_config.cluster, context.topology)
        source, planned = _source_of(run_config, folder, chief)
        with chief.program(planned, source) as program:
            store = Store(folder.checkpoints)
            checkpoint = trained_model.restore(program.model, run_config.restore, store, reporter.warn)
            chief.restored(checkpoint.step)
            chief.pulse.begin(state)
            chief.pulse.last_step = checkpoint.step
            yield SavedProgram(program, checkpoint, chief, folder)


class _Input:
    """What the output takes from the input besides the predictions: columns of files, and what is wrong with rows.

    Args:
      labeled: whether the rows have labels.
      problems: what is wrong with a malformed row, by its index.
      batches: the kept columns of all rows; None without such columns.
    """

    def __init__(
        self,
        *,
        labeled: bool = True,
        problems: Mapping[int, str] = types.MappingProxyType({}),
        batches: Iterator[pa.RecordBatch] | None = None,
    ) -> None:
        self.labeled = labeled
        self.problems = problems
        self._batches = batches
        self._ahead: pa.Table | None = None  # rows that were read and not yet taken

    def kept(self, num_rows: int) -> pa.Table | None:
        """The kept columns of the next rows; None without such columns.

        Raises:
          DataError: there are fewer rows.
        """
        if self._batches is None:
            return None
        while self._ahead is None or len(self._ahead) < num_rows:
            batch = next(self._batches, None)
            if batch is None:
                raise DataError("the files have fewer rows than were predicted: did they change meanwhile?")
            tables = [pa.Table.from_batches([batch])]
            if self._ahead is not None:
                tables.insert(0, self._ahead)
            self._ahead = pa.concat_tables(tables)
        taken = self._ahead.slice(0, num_rows)
        self._ahead = self._ahead.slice(num_rows)
        return taken

    def problems_of(self, first: int, num_rows: int) -> dict[int, str]:
        """What is wrong with some of the rows from `first` on, by the index among these."""
        rows = range(first, first + num_rows)
        return {index: self.problems[row] for index, row in enumerate(rows) if row in self.problems}


def _input_of(source: DataSource, keep: Sequence[str]) -> _Input:
    """The input for predictions; `rows_to_predict` of the source, a `RowsToPredict`, describes files with columns.

    Args:
      keep: names of columns of the input.

    Raises:
      ConfigError: there are no rows, or no such columns.
    """
    if not source.num_eval_examples:
        raise ConfigError([Problem("data", "has no evaluation examples to predict")])
    rows = getattr(source, "rows_to_predict", None)
    if rows is None:
        if not keep:
            return _Input()
        message = "requires data in files with columns, such as data=table; set it to []"
        raise ConfigError([Problem("predict.keep", message)])
    problems = []
    for name in keep:
        if name not in rows.columns:
            message = f"names {name!r}, which is no column of the files.{did_you_mean(name, rows.columns)}"
            problems.append(Problem("predict.keep", message))
    if problems:
        raise ConfigError(problems)
    batches = None
    if keep:
        batches = rows.kept(keep)
    return _Input(labeled=rows.labeled, problems=rows.problems, batches=batches)


# The labels and the outputs of the model for consecutive rows: arrays, or nests of these by output.
Batches = Iterator[tuple[Any, Any]]


def run_predict(run_config: RunConfig, context: TaskContext) -> None:
    """Writes the file and prints its path. Parameter server clusters predict on their workers, others in this process.

    With `predict.top_k`, a function of a part with the same arguments does it (`psrun.parts.Part.outputs`).

    Raises:
      PsrunError: there is no such checkpoint, nothing to predict, or the file cannot be written.
    """
    if run_config.predict.top_k is not None:
        name = parts.output("predict.top_k")
        assert name is not None  # else the configuration is refused
        parts.load(name)(run_config, context)
        return
    if not run_config.cluster.has_parameter_servers:
        _run_here(run_config, context)
        return
    with saved_program(run_config, context, state="predicting") as saved:
        program = saved.program
        rows = _input_of(program.source, run_config.predict.keep)
        batches = _on_workers(program, rows.labeled)
        path = _path(run_config, saved.folder, saved.checkpoint.step)
        count = _write(path, run_config, program.source, program.network, rows, batches, saved.chief)
        _report(saved.chief.reporter, saved.checkpoint.step, path, count, rows.problems)
        best = _best_instead(run_config, saved.folder, saved.checkpoint.step)
        if best is not None:
            saved.chief.reporter.emit("other_best", step=saved.checkpoint.step, text=best)


def _run_here(run_config: RunConfig, context: TaskContext) -> None:
    """Predicts in this process, with the whole model."""
    folder = context.folder
    with source_here(run_config, context) as (chief, source, run_config):
        rows = _input_of(source, run_config.predict.keep)
        loaded = trained_model.load(run_config, source, Store(folder.checkpoints), chief.reporter.warn)
        step = loaded.checkpoint.step
        path = _path(run_config, folder, step)
        count = _write(path, run_config, source, loaded.model.network, rows, _here(run_config, loaded), chief)
        _report(chief.reporter, step, path, count, rows.problems)
        best = _best_instead(run_config, folder, step)
        if best is not None:
            chief.reporter.emit("other_best", step=step, text=best)


def _path(run_config: RunConfig, folder: RunFolder, step: int) -> Path:
    if run_config.predict.path is not None:
        return Path(run_config.predict.path).expanduser()
    return folder.predictions / f"{step}.{run_config.predict.file_format}"


def _write(
    path: Path,
    run_config: RunConfig,
    source: DataSource,
    network: Any,
    rows: _Input,
    batches: Batches,
    chief: Chief,
) -> int:
    """Writes the file; returns its number of rows.

    Raises:
      DataError: the number differs from the data source's.
    """
    count = 0
    class_names = loading.class_names(source, run_config.data.label_vocabulary)
    layout = Layout(class_names, bool(rows.problems), _probability_columns(source, class_names))
    file_format = run_config.predict.file_format
    assert file_format is not None
    output_names = getattr(network, "output_names", None) or ()
    with written(path, file_format, layout) as write:
        for label, outputs in batches:
            predictions = _by_name(outputs, output_names, alone=PREDICTION)
            num_rows = len(next(iter(predictions.values())))
            kept = rows.kept(num_rows)
            labels: dict[str, np.ndarray] = {}
            if rows.labeled:
                labels = _by_name(label, output_names, alone=LABEL, prefix=f"{LABEL}_")
            write(Rows(kept, labels, predictions, rows.problems_of(count, num_rows)))
            count += num_rows
            chief.preparing(f"predicting: {count:,} of {source.num_eval_examples:,} examples")
            if count > source.num_eval_examples:  # perhaps it has no end
                break
        if count != source.num_eval_examples:
            message = f"predicted {count} examples, but the data source reports {source.num_eval_examples}"
            raise DataError(f"{message} (num_eval_examples)")
    return count


def _probability_columns(source: DataSource, class_names: Sequence[str] | None) -> dict[str, str]:
    """By output, LABEL=CLASS for the probability of the second of two classes with names.

    Labels of 0 and 1 have no names: their probability can only be the one of 1.

    Args:
      class_names: of a source with one label.
    """
    by_label: dict[str, Sequence[Any]] = dict(getattr(source, "classes", {}))
    columns = {}
    for label, names in by_label.items():
        if len(names) == 2:
            columns[label] = f"{label}={names[1]}"
    if class_names is not None and len(class_names) == 2:
        label = next(iter(by_label), LABEL)
        columns[PREDICTION] = f"{label}={class_names[1]}"
    return columns


def _best_instead(run_config: RunConfig, folder: RunFolder, step: int) -> str | None:
    """How to take the best checkpoint; None if it was taken, if a person chose another one, or if none is kept."""
    best = Store(folder.checkpoints).best()
    if run_config.restore != LATEST or best is None or best["step"] == step:
        return None
    return f"the best by {best['metric']} is step {best['step']}: restore={BEST_ONE}"


def _report(reporter: Reporter, step: int, path: Path, num_rows: int, problems: Mapping[int, str]) -> None:
    """Reports the file with the predictions. Raises DataError if all of its rows are malformed."""
    num_malformed = len(problems)
    if problems:
        text = (
            f"{num_malformed:,} of {num_rows:,} rows are malformed and have no prediction; the column {PROBLEM} has "
            f"the reasons, the first one: {problems[min(problems)]}"
        )
        if num_malformed == num_rows:
            raise DataError(f"{path}: {text}")
        reporter.warn(text)
    reporter.emit("predictions", step=step, path=str(path), count=num_rows - num_malformed, malformed=num_malformed)


def _on_workers(program: Program, labeled: bool) -> Batches:
    """The predictions of the workers, in shards; in few if the source must be read from the start for each."""

    def predicted(batch: tuple[Any, ...]) -> tuple[Any, Any]:
        features, label, *_ = batch
        values = program.network(features, training=False)
        probabilities = objective.to_probabilities(values, program.model, task_of(program.source))
        return label if labeled else (), probabilities

    num_batches = num_eval_batches(program.config, program.source)
    num_shards = SHARDS_PER_WORKER * program.distribution.num_workers
    if reads_shards(program.source):
        size = max(_BATCHES_PER_SHARD, -(-_EXAMPLES_PER_SHARD // eval_batch_size(program.config)))
        num_shards = max(num_shards, -(-num_batches // size))
    num_shards = max(1, min(num_batches, num_shards))
    return Shards(program, num_shards, predicted, program.data.evaluation_dataset).results()


def _here(run_config: RunConfig, loaded: trained_model.LoadedModel) -> Batches:
    to_class_numbers = loading.to_class_numbers(loaded.source, run_config.data.label_vocabulary)
    predict = tf.function(
        lambda batch: trained_model.predict(loaded.model, loaded.source, batch),
        input_signature=[trained_model.signature(loaded.source)],
    )
    batch_size = eval_batch_size(run_config)
    checks = BatchChecks(loaded.source, loaded.model, has_labels=False)
    raw = evaluation_batches(loaded.source, batch_size)
    batch_checks.check_list_features(loaded.source.features, raw.element_spec)
    check_spec(loaded.source, raw.element_spec)

    def ready(batch: tuple[Any, ...], place: Place) -> tuple[Any, Any]:
        features, label, *_ = checks.checked(batch, place)
        features = batch_checks.ragged_features(features)
        declared = loaded.source.features
        return {name: tf.cast(features[name], feature.dtype) for name, feature in declared.items()}, label

    with data_errors(), embeddings.naming_outside_ids(loaded.model.network, loaded.source.features):
        for features, label in evaluated(raw, batch_size, ready):
            if to_class_numbers is not None:
                label = to_class_numbers(label)
            yield tf.nest.map_structure(_array, (label, predict(features)))


def _array(values: Any) -> Any:
    """A tensor as an array; a RaggedTensor remains one."""
    return values if isinstance(values, tf.RaggedTensor) else values.numpy()


def _by_name(values: Any, output_names: Sequence[str], *, alone: str, prefix: str = "") -> dict[str, np.ndarray]:
    """Labels or predictions by the name of their column.

    Args:
      values: an array, or a mapping or a sequence of arrays by output.
      alone: the name of the column of a single array.
      prefix: of the names of outputs.

    Raises:
      ConfigError: there is a RaggedTensor.
    """
    if isinstance(values, Mapping):
        outputs = dict(values)
    elif isinstance(values, list | tuple):
        names = output_names if len(output_names) == len(values) else [f"output_{i}" for i in range(len(values))]
        outputs = dict(zip(names, values))
    elif isinstance(values, tf.RaggedTensor):
        message = f"psrun predict writes the same number of values for each example, but {alone} is a RaggedTensor"
        raise ConfigError([Problem("model", message)])
    else:
        return {alone: values}
    named: dict[str, np.ndarray] = {}
    for name, value in outputs.items():
        named |= _by_name(value, (), alone=f"{prefix}{name}", prefix=f"{prefix}{name}_")
    return named


def run_export(run_config: RunConfig, folder: RunFolder, console: Console) -> None:
    """Writes the export and prints its path.

    Raises:
      PsrunError: there is no such checkpoint, or the model cannot be written.
    """
    source = loading.load_source(run_config, folder.data_facts(), folder=folder.root.path)
    warn = warner(console)
    tables = run_config.export.tables
    loaded = trained_model.load(run_config, source, Store(folder.checkpoints), warn, tables=tables)
    path = trained_model.export(loaded, folder.path / "export", warn)
    print_folded(console, Text(f"exported step {loaded.checkpoint.step} to {shown(str(path))}"))
    best = _best_instead(run_config, folder, loaded.checkpoint.step)
    if best is not None:
        print_folded(console, Text(best))
