"""mode=predict: the predictions of a run's model for each example of the evaluation data, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.checkpoint import load_model
from psrun.checkpoint.store import Store
from psrun.config.run_config import PredictKeys, RunConfig
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
Batches = Iterator[list[np.ndarray]]  # labels and predictions of each batch


def run(run_config: RunConfig, context: TaskContext) -> None:
    """Writes the file and prints its path. Parameter server clusters predict on their workers, others in this process.

    Raises:
      PsrunError: there is no such checkpoint, nothing to predict, or the file cannot be written.
    """
    if not run_config.cluster.has_parameter_servers:
        _run_here(run_config, context)
        return
    with restored(run_config, context, state="predicting") as there:
        source, step = there.program.source, there.checkpoint.step
        _require_examples(source)
        path = _path(run_config.predict, there.whole, step)
        summary = _write(run_config, source, _on_workers(there.program), path, there.chief.preparing)
        there.chief.reporter.emit("predictions", step=step, **summary)


def _run_here(run_config: RunConfig, context: TaskContext) -> None:
    """Predicts in this process, with the whole model."""
    reporter, alone = Reporter([context.console], started_s=context.started_s), replace(context, topology=None)
    with Chief(run_config, alone, reporter) as chief:
        source = load.load_source(run_config, context.folder.stored().get("data"), chief.preparing)
        _require_examples(source)
        loaded = load_model.load(run_config, source, Store(context.folder.checkpoints), reporter.warn)
        path = _path(run_config.predict, context.folder, loaded.checkpoint.step)
        summary = _write(run_config, source, _here(run_config, loaded), path, chief.preparing)
        reporter.emit("predictions", step=loaded.checkpoint.step, **summary)


def _write(
    run_config: RunConfig, source: DataSource, batches: Batches, path: Path, report: Callable[[str], None]
) -> dict[str, Any]:
    """Writes the file; returns its path and its number of examples.

    Raises:
      DataError: the number differs from the data source's.
    """
    count, names = 0, labels.class_names(source, run_config.data.label_vocabulary)
    with prediction_files.written(path, run_config.predict.format, names) as write:
        for label, predicted in batches:
            write(label, predicted)
            count += len(label)
            report(f"predicting: {count:,} of {source.num_eval_examples:,} examples")
        if count != source.num_eval_examples:
            message = f"predicted {count} examples, but the data source reports {source.num_eval_examples}"
            raise DataError(f"{message} (num_eval_examples)")
    return {"path": str(path), "count": count}


def _on_workers(program: Program) -> Batches:
    """The predictions of the workers, in shards; in few if the source must be read from the start for each."""

    def predicted(batch: tuple[Any, ...]) -> list[tf.Tensor]:
        features, label, *_ = batch
        values = program.network(features, training=False)
        return [label, _single(objective.to_probabilities(values, program.model, task_of(program.source)))]

    num_batches = num_eval_batches(program.config, program.source)
    num_shards = SHARDS_PER_WORKER * program.distribution.num_workers
    if reads_shards(program.source):
        size = max(_BATCHES_PER_SHARD, -(-_EXAMPLES_PER_SHARD // eval_batch_size(program.config)))
        num_shards = max(num_shards, -(-num_batches // size))
    return Shards(program, max(1, min(num_batches, num_shards)), predicted).results()


def _here(run_config: RunConfig, loaded: load_model.LoadedModel) -> Batches:
    to_class_numbers = labels.to_class_numbers(loaded.source, run_config.data.label_vocabulary)
    predict = tf.function(
        lambda batch: _single(load_model.predict(loaded.model, loaded.source, batch)),
        input_signature=[load_model.signature(loaded.source)],
    )
    batch_size = eval_batch_size(run_config)
    for features, label, *_ in evaluation_batches(loaded.source, batch_size).prefetch(2):
        label = label if to_class_numbers is None else to_class_numbers(label)
        yield [label.numpy(), predict(features).numpy()]


def _single(values: Any) -> tf.Tensor:
    if tf.nest.is_nested(values):
        raise ConfigError([Problem("model", "has several outputs, but mode=predict requires one")])
    return values


def _require_examples(source: DataSource) -> None:
    if not source.num_eval_examples:
        raise ConfigError([Problem("data", "has no evaluation examples to predict")])


def _path(keys: PredictKeys, whole: RunFolder, step: int) -> Path:
    return Path(keys.path).expanduser() if keys.path is not None else whole.predictions / f"{step}.{keys.format}"
