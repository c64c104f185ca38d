"""mode=predict: the predictions of a run's model for each row of the evaluation data, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import tensorflow as tf

from psrun.checkpoint import load_model
from psrun.checkpoint.store import Store
from psrun.config.run_config import PredictKeys, RunConfig
from psrun.config.schema import did_you_mean
from psrun.data import labels, load
from psrun.data.source import DataSource, evaluation_batches, reads_shards, task_of
from psrun.errors import ConfigError, DataError, Problem
from psrun.program import objective
from psrun.program.compiled_model import Program
from psrun.program.evaluation_sizes import eval_batch_size, num_eval_batches
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.roles.chief import Chief
from psrun.roles.restored import restored
from psrun.roles.task_context import TaskContext
from psrun.training.evaluation import prediction_files
from psrun.training.evaluation.shards import SHARDS_PER_WORKER, Shards

# For each shard a worker builds a data pipeline, at the cost of a few batches. The predictions of a shard are in memory
# as a whole.
_BATCHES_PER_SHARD, _EXAMPLES_PER_SHARD = 8, 8192  # whichever is larger
# The labels and the outputs of the model for consecutive rows: arrays, or nests of these by output.
Predicted = Iterator[tuple[Any, Any]]


class InputRows(Protocol):
    """The rows of files, as the attribute `rows_to_predict` of a source has them; other sources have no such attribute.

    Attributes:
      num_rows: all of them. Malformed rows are in the batches, too, with values that mean nothing.
      labeled: whether the labels in the batches are real.
      problems: what is wrong with each malformed row, by its index.
      columns: the names of the columns of the files.
    """

    num_rows: int
    labeled: bool
    problems: Mapping[int, str]
    columns: tuple[str, ...]

    def kept(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of all rows, in order, as they are in the files."""
        ...


class _Input:
    """What the output takes from the input besides the predictions.

    Args:
      keep: names of columns of the input.

    Raises:
      ConfigError: there are no rows, or no such columns.
    """

    def __init__(self, source: DataSource, keep: Sequence[str]) -> None:
        if not source.num_eval_examples:
            raise ConfigError([Problem("data", "has no evaluation examples to predict")])
        rows: InputRows | None = getattr(source, "rows_to_predict", None)
        if keep and rows is None:
            message = "requires data in files with columns, such as data=table; set it to []"
            if hasattr(source, "rows_to_predict"):  # which predicts the rows that its split holds out
                message = "requires data.eval_path=FILE, the file with the rows to predict"
            raise ConfigError([Problem("predict.keep", message)])
        if rows is not None and (unknown := [name for name in keep if name not in rows.columns]):
            raise ConfigError([_no_such_column(name, rows.columns) for name in unknown])
        self.labeled = rows is None or rows.labeled
        self.problems: Mapping[int, str] = {} if rows is None else rows.problems
        self._batches = rows.kept(keep) if rows is not None and keep else None
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
            read = pa.Table.from_batches([batch])
            self._ahead = read if self._ahead is None else pa.concat_tables([self._ahead, read])
        taken = self._ahead.slice(0, num_rows)
        self._ahead = self._ahead.slice(num_rows)
        return taken

    def problems_of(self, first: int, num_rows: int) -> dict[int, str]:
        """What is wrong with some of the rows from `first` on, by the index among these."""
        if not self.problems:
            return {}
        return {index: self.problems[first + index] for index in range(num_rows) if first + index in self.problems}


def run(run_config: RunConfig, context: TaskContext) -> None:
    """Writes the file and prints its path. Parameter server clusters predict on their workers, others in this process.

    Raises:
      PsrunError: there is no such checkpoint, nothing to predict, or the file cannot be written.
    """
    if not run_config.cluster.has_parameter_servers:
        _run_here(run_config, context)
        return
    with restored(run_config, context, state="predicting") as there:
        program, step, chief = there.program, there.checkpoint.step, there.chief
        given = _Input(program.source, run_config.predict.keep)
        path = _path(run_config.predict, there.whole, step)
        names = _output_names(program.network)
        summary = _write(
            run_config, program.source, given, _on_workers(program, given.labeled), names, path, chief.preparing
        )
        _report(chief.reporter, step, given, summary)


def _run_here(run_config: RunConfig, context: TaskContext) -> None:
    """Predicts in this process, with the whole model."""
    reporter, alone = Reporter([context.console], started_s=context.started_s), replace(context, topology=None)
    with Chief(run_config, alone, reporter) as chief:
        source = load.load_source(
            run_config, context.folder.stored().get("data"), chief.preparing, context.folder.whole.path
        )
        run_config = load.planned(run_config, source)
        given = _Input(source, run_config.predict.keep)
        loaded = load_model.load(run_config, source, Store(context.folder.checkpoints), reporter.warn)
        step = loaded.checkpoint.step
        path = _path(run_config.predict, context.folder, step)
        names = _output_names(loaded.model.network)
        summary = _write(run_config, source, given, _here(run_config, loaded), names, path, chief.preparing)
        _report(reporter, step, given, summary)


def _write(
    run_config: RunConfig,
    source: DataSource,
    given: _Input,
    batches: Predicted,
    output_names: Sequence[str],
    path: Path,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Writes the file; returns its path and its number of rows.

    Raises:
      DataError: the number differs from the data source's.
    """
    count = 0
    layout = prediction_files.Layout(labels.class_names(source, run_config.data.label_vocabulary), bool(given.problems))
    file_format = run_config.predict.file_format
    assert file_format is not None
    with prediction_files.written(path, file_format, layout) as write:
        for label, outputs in batches:
            predictions = _by_name(outputs, output_names, alone="prediction")
            num_rows = len(next(iter(predictions.values())))
            rows = prediction_files.Rows(
                kept=given.kept(num_rows),
                labels=_by_name(label, output_names, alone="label", prefix="label_") if given.labeled else {},
                predictions=predictions,
                problems=given.problems_of(count, num_rows),
            )
            write(rows)
            count += num_rows
            report(f"predicting: {count:,} of {source.num_eval_examples:,} examples")
        if count != source.num_eval_examples:
            message = f"predicted {count} examples, but the data source reports {source.num_eval_examples}"
            raise DataError(f"{message} (num_eval_examples)")
    return {"path": str(path), "count": count}


def _report(reporter: Reporter, step: int, given: _Input, summary: Mapping[str, Any]) -> None:
    malformed = len(given.problems)
    if malformed:
        first = min(given.problems)
        reporter.warn(
            f"{malformed:,} of {summary['count']:,} rows are malformed and have no prediction; the column "
            f"{prediction_files.PROBLEM} has the reasons, the first one: {given.problems[first]}"
        )
    reporter.emit("predictions", step=step, **summary, malformed=malformed)


def _on_workers(program: Program, labeled: bool) -> Predicted:
    """The predictions of the workers, in shards; in few if the source must be read from the start for each."""

    def predicted(batch: tuple[Any, ...]) -> tuple[Any, Any]:
        features, label, *_ = batch
        values = program.network(features, training=False)
        return label if labeled else (), objective.to_probabilities(values, program.model, task_of(program.source))

    num_batches = num_eval_batches(program.config, program.source)
    num_shards = SHARDS_PER_WORKER * program.distribution.num_workers
    if reads_shards(program.source):
        size = max(_BATCHES_PER_SHARD, -(-_EXAMPLES_PER_SHARD // eval_batch_size(program.config)))
        num_shards = max(num_shards, -(-num_batches // size))
    return Shards(program, max(1, min(num_batches, num_shards)), predicted).results()


def _here(run_config: RunConfig, loaded: load_model.LoadedModel) -> Predicted:
    to_class_numbers = labels.to_class_numbers(loaded.source, run_config.data.label_vocabulary)
    predict = tf.function(
        lambda batch: load_model.predict(loaded.model, loaded.source, batch),
        input_signature=[load_model.signature(loaded.source)],
    )
    batch_size = eval_batch_size(run_config)
    for features, label, *_ in evaluation_batches(loaded.source, batch_size).prefetch(2):
        label = label if to_class_numbers is None else to_class_numbers(label)
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
        message = f"mode=predict writes the same number of values for each example, but {alone} is a RaggedTensor"
        raise ConfigError([Problem("model", message)])
    else:
        return {alone: values}
    named: dict[str, np.ndarray] = {}
    for name, value in outputs.items():
        named |= _by_name(value, (), alone=f"{prefix}{name}", prefix=f"{prefix}{name}_")
    return named


def _output_names(network: Any) -> Sequence[str]:
    """The names of the outputs of a model that returns a sequence; empty if it has no names for them."""
    return getattr(network, "output_names", None) or ()


def _no_such_column(name: str, columns: Sequence[str]) -> Problem:
    return Problem("predict.keep", f"names {name!r}, which is no column of the files.{did_you_mean(name, columns)}")


def _path(keys: PredictKeys, whole: RunFolder, step: int) -> Path:
    return Path(keys.path).expanduser() if keys.path is not None else whole.predictions / f"{step}.{keys.file_format}"
