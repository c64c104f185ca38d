"""The coordinator: connects to the cluster, builds the program in its scope, trains it, reports."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import tensorflow as tf

from psrun import config, placement, program, strategy
from psrun.checkpoint import Checkpoints
from psrun.config import RunConfig
from psrun.errors import TrainingError
from psrun.evaluation.direct import DirectEvaluation
from psrun.reporting.events import Reporter, Sink
from psrun.reporting.run_folder import RunFolder
from psrun.reporting.summaries import Summaries
from psrun.training import custom_loop, fit
from psrun.training.monitor import iterations
from psrun.training.session import Session, data_ended

TRAINERS = {"custom_loop": custom_loop.trainer, "fit": fit.trainer}
_VERSIONS = ("psrun", "tensorflow", "tf-keras", "hydra-core")


def run(
    run_config: RunConfig,
    folder: RunFolder,
    console: Sink,
    *,
    started_s: float,
    connect: Callable[[config.Cluster, config.Partitioner], strategy.Distribution] = strategy.connect,
) -> None:
    """Trains as configured; what came of it is in the run folder.

    Args:
      connect: starts what the topology needs and connects to it; tests hand in one that uses servers already there.

    Raises:
      PsrunError: the run failed; run.json says so as well.
    """
    reporter = Reporter([folder, Summaries(folder.tensorboard), console], started_s=started_s)
    try:
        reporter.emit("start", title=_title(run_config), run_folder=str(folder.path), notes=notes(run_config))
        folder.update(cluster=_cluster(run_config), versions={name: version(name) for name in _VERSIONS})
        strategy.configure_threads(run_config.cluster)
        train = TRAINERS[run_config.trainer.kind](run_config)
        source = program.load_source(run_config)
        folder.update(data={"num_train_examples": source.num_train_examples,
                            "num_eval_examples": source.num_eval_examples, **source.facts})  # fmt: skip
        program.start_afresh(run_config.seed)
        built = program.build(run_config, source, connect(run_config.cluster, run_config.partitioner))
        program.build_state(built)
        _report_placement(built, folder, reporter)
        _train(built, train, folder, reporter)
    finally:
        reporter.close()


def notes(run_config: RunConfig) -> list[str]:
    """What a person should know of this run before it starts."""
    found = []
    if not run_config.parameter_servers and not isinstance(run_config.partitioner, config.NoPartitioner):
        found.append(f"partitioner={run_config.partitioner.kind} has no effect without parameter servers")
    if run_config.parameter_servers:
        found.append("TensorFlow's servers listen on all interfaces of this machine, without authentication")
    return found


def _title(run_config: RunConfig) -> str:
    cluster = run_config.cluster
    size = f" ({cluster.num_workers} workers, {cluster.num_ps} ps)" if isinstance(cluster, config.InProcess) else ""
    return f"{run_config.model.name.rpartition('.')[2]} on {cluster.kind}{size}, {run_config.trainer.kind}"


def _cluster(run_config: RunConfig) -> dict[str, Any]:
    cluster = run_config.cluster
    return {
        "topology": cluster.kind,
        "num_workers": getattr(cluster, "num_workers", 1),
        "num_ps": getattr(cluster, "num_ps", 0),
    }


def _report_placement(built: program.Program, folder: RunFolder, reporter: Reporter) -> None:
    placed = observe(built)
    rows = [asdict(shard) for shard in placed]
    found = placement.balance(placed)
    folder.update(placement=rows, balance=asdict(found))
    reporter.emit("placement", placement=rows, **asdict(found))
    run_config = built.config
    if run_config.parameter_servers and isinstance(run_config.partitioner, config.FixedShards):
        wanted = run_config.partitioner.num_shards
        short = placement.with_fewer_rows(placed, wanted)
        if short:
            reporter.emit("warning", message=f"cut in fewer than {wanted} shards, one a row: {', '.join(short)}")


def observe(built: program.Program) -> list[placement.Placed]:
    """Where every variable of the program lives."""
    return [
        *placement.observed("model", built.network.variables),
        *placement.observed("optimizer", built.optimizer.variables()),
        *placement.observed("metric", program.metric_variables(built)),
    ]


def _train(built: program.Program, train: Any, folder: RunFolder, reporter: Reporter) -> None:
    run_config = built.config
    checkpoints = None
    if isinstance(run_config.checkpoint, config.EpochCheckpoints):
        checkpoints = Checkpoints(built, folder.checkpoints, max_to_keep=run_config.checkpoint.max_to_keep)
    session = Session(
        built,
        reporter,
        evaluation=DirectEvaluation(built) if isinstance(run_config.evaluation, config.Direct) else None,
        checkpoints=checkpoints,
        record=folder.append,
    )
    session.monitor.start()
    try:
        with _named_errors(session):
            train(built, session)
    finally:
        session.monitor.stop()
        result = _result(session, reporter)
        folder.update(**result)
    reporter.emit("end", step=result["steps"]["applied"], **{k: result[k] for k in (
        "metrics", "wall_s", "time_to_first_step_s", "steps_per_s", "examples_per_s")})  # fmt: skip


@contextmanager
def _named_errors(session: Session) -> Iterator[None]:
    """TensorFlow's errors as psrun's."""
    try:
        yield
    except tf.errors.OpError as error:
        # A closure that was cancelled because another one failed says nothing; a loss that was NaN explains more.
        session.check_loss()
        text = re.sub(r"\s+", " ", str(error))
        if isinstance(error, tf.errors.OutOfRangeError) or "End of sequence" in text:
            raise data_ended(iterations(session.program), session.monitor.planned) from error
        raise TrainingError(f"a step failed: {type(error).__name__}: {text[:600]}") from error


def _result(session: Session, reporter: Reporter) -> dict[str, Any]:
    """The keys of run.json that are known once the training has ended, well or not."""
    totals, first_step_s = session.totals, session.monitor.first_step_s
    rate = totals.rate()
    evaluation = session.last_evaluation
    first = None if first_step_s is None else round(reporter.wall_s - (time.monotonic() - first_step_s), 3)
    evaluated = {} if evaluation is None else {f"val_{name}": value for name, value in evaluation.metrics.items()}
    return {
        "metrics": {**totals.metrics, **evaluated},
        "steps": {"applied": session.monitor.last_step, "scheduled": session.scheduled},
        "steps_per_s": rate,
        "examples_per_s": None if rate is None else rate * session.program.config.data.global_batch_size,
        "time_to_first_step_s": first,
        "wall_s": round(reporter.wall_s, 3),
        "evaluation": None if evaluation is None else asdict(evaluation),
        "pid": os.getpid(),
    }
