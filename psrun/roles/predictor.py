"""mode=predict: the predictions of a run's model for each row of the evaluation data, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from psrun import parts
from psrun.checkpoint import load_model
from psrun.checkpoint.store import Store
from psrun.config.run_config import RunConfig
from psrun.config.schema import did_you_mean
from psrun.data import labels, load
from psrun.data.source import DataSource, evaluation_batches, reads_shards, task_of
from psrun.errors import ConfigError, DataError, Problem
from psrun.program import list_inputs, objective, outside_ids
from psrun.program.batch_checks import BatchChecks, Place, check_spec, data_errors, evaluated
from psrun.program.compiled_model import Program
from psrun.program.evaluation_sizes import eval_batch_size, num_eval_batches
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.roles.chief import Chief
from psrun.roles.evaluation import report_differences, saved_program
from psrun.roles.task_context import TaskContext
from psrun.training.evaluation import prediction_files
from psrun.training.evaluation.shards import SHARDS_PER_WORKER, Shards

# For each shard a worker builds a data pipeline, at the cost of a few batches. The predictions of a shard are in memory
# as a whole.
_BATCHES_PER_SHARD = 8  # or _EXAMPLES_PER_SHARD, whichever is larger
_EXAMPLES_PER_SHARD = 8192
# The labels and the outputs of the model for consecutive rows: arrays, or nests of these by output.
Batches = Iterator[tuple[Any, Any]]


class _Input:
    """What the output takes from the input besides the predictions: columns of files, and what is wrong with rows.

    Files with columns are described by `rows_to_predict` of the data source, a `RowsToPredict`.

    Args:
      keep: names of columns of the input.

    Raises:
      ConfigError: there are no rows, or no such columns.
    """

    def __init__(self, source: DataSource, keep: Sequence[str]) -> None:
        if not source.num_eval_examples:
            raise ConfigError([Problem("data", "has no evaluation examples to predict")])
        rows = getattr(source, "rows_to_predict", None)
        if keep and rows is None:
            message = "requires data in files with columns, such as data=table; set it to []"
            if hasattr(source, "rows_to_predict"):  # which predicts the rows that its split holds out
                message = "requires data.eval_path=FILE, the file with the rows to predict"
            raise ConfigError([Problem("predict.keep", message)])
        self.labeled = True
        self.problems: Mapping[int, str] = {}
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._ahead: pa.Table | None = None  # rows that were read and not yet taken
        if rows is None:
            return
        problems = [
            Problem(
                "predict.keep", f"names {name!r}, which is no column of the files.{did_you_mean(name, rows.columns)}"
            )
            for name in keep
            if name not in rows.columns
        ]
        if problems:
            raise ConfigError(problems)
        self.labeled = rows.labeled
        self.problems = rows.problems
        if keep:
            self._batches = rows.kept(keep)

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
        rows = range(first, first + num_rows)
        return {index: self.problems[row] for index, row in enumerate(rows) if row in self.problems}


def run(run_config: RunConfig, context: TaskContext) -> None:
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
        rows = _Input(program.source, run_config.predict.keep)
        batches = _on_workers(program, rows.labeled)
        path = _path(run_config, saved.folder, saved.checkpoint.step)
        count = _write(path, run_config, program.source, program.network, rows, batches, saved.chief)
        _report(saved.chief.reporter, saved.checkpoint.step, path, count, rows.problems)


def _run_here(run_config: RunConfig, context: TaskContext) -> None:
    """Predicts in this process, with the whole model."""
    folder = context.folder
    reporter = Reporter([context.console], started_s=context.started_s)
    with Chief(run_config, replace(context, topology=None), reporter) as chief:
        source = load.load_source(run_config, folder.stored().get("data"), chief.preparing, folder.root.path)
        report_differences(source, folder, reporter, run_config.mode)
        run_config = load.planned(run_config, source)
        rows = _Input(source, run_config.predict.keep)
        loaded = load_model.load(run_config, source, Store(folder.checkpoints), reporter.warn)
        step = loaded.checkpoint.step
        path = _path(run_config, folder, step)
        count = _write(path, run_config, source, loaded.model.network, rows, _here(run_config, loaded), chief)
        _report(reporter, step, path, count, rows.problems)


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
    layout = prediction_files.Layout(labels.class_names(source, run_config.data.label_vocabulary), bool(rows.problems))
    file_format = run_config.predict.file_format
    assert file_format is not None
    output_names = getattr(network, "output_names", None) or ()
    with prediction_files.written(path, file_format, layout) as write:
        for label, outputs in batches:
            predictions = _by_name(outputs, output_names, alone="prediction")
            num_rows = len(next(iter(predictions.values())))
            write(
                prediction_files.Rows(
                    kept=rows.kept(num_rows),
                    labels=_by_name(label, output_names, alone="label", prefix="label_") if rows.labeled else {},
                    predictions=predictions,
                    problems=rows.problems_of(count, num_rows),
                )
            )
            count += num_rows
            chief.preparing(f"predicting: {count:,} of {source.num_eval_examples:,} examples")
            if count > source.num_eval_examples:  # perhaps it has no end
                break
        if count != source.num_eval_examples:
            message = f"predicted {count} examples, but the data source reports {source.num_eval_examples}"
            raise DataError(f"{message} (num_eval_examples)")
    return count


def _report(reporter: Reporter, step: int, path: Path, count: int, problems: Mapping[int, str]) -> None:
    if problems:
        reporter.warn(
            f"{len(problems):,} of {count:,} rows are malformed and have no prediction; the column "
            f"{prediction_files.PROBLEM} has the reasons, the first one: {problems[min(problems)]}"
        )
    reporter.emit("predictions", step=step, path=str(path), count=count, malformed=len(problems))


def _on_workers(program: Program, labeled: bool) -> Batches:
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
    num_shards = max(1, min(num_batches, num_shards))
    return Shards(program, num_shards, predicted, program.evaluation_dataset).results()


def _here(run_config: RunConfig, loaded: load_model.LoadedModel) -> Batches:
    to_class_numbers = labels.to_class_numbers(loaded.source, run_config.data.label_vocabulary)
    predict = tf.function(
        lambda batch: load_model.predict(loaded.model, loaded.source, batch),
        input_signature=[load_model.signature(loaded.source)],
    )
    batch_size = eval_batch_size(run_config)
    checks = BatchChecks(loaded.source, loaded.model, has_labels=False)
    raw = evaluation_batches(loaded.source, batch_size)
    list_inputs.check_features(loaded.source.features, raw.element_spec)
    check_spec(loaded.source, raw.element_spec)

    def ready(batch: tuple[Any, ...], place: Place) -> tuple[Any, Any]:
        features, label, *_ = checks.checked(batch, place)
        features = list_inputs.ragged(features)
        declared = loaded.source.features
        return {name: tf.cast(features[name], feature.dtype) for name, feature in declared.items()}, label

    with data_errors(), outside_ids.named(loaded.model.network, loaded.source.features):
        for features, label in evaluated(raw, batch_size, ready):
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
