"""The coordinator: connects to the cluster, builds the program in its scope, trains it, reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

import psutil

from psrun.checkpoint import export, load_model
from psrun.checkpoint.checkpoints import Checkpoints
from psrun.checkpoint.manifest import Position
from psrun.checkpoint.store import Store
from psrun.cluster import data_service, placement, strategy
from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.config.topology import Topology
from psrun.data import load
from psrun.errors import PsrunError
from psrun.evaluation import meters, modes
from psrun.optimizers import cost
from psrun.process import Stop
from psrun.program import compiled_model
from psrun.results import task_files
from psrun.results.events import Reporter, Sink
from psrun.results.run_folder import RunFolder
from psrun.results.trackers import choosing
from psrun.roles.chief import Chief
from psrun.training import custom_loop, fit, own_loop, resume
from psrun.training.checkpoint_schedule import Saving
from psrun.training.hooks import Hooks
from psrun.training.metric_policies import Following
from psrun.training.session import Session
from psrun.training.synchronized_stop import Lockstep
from psrun.training.trainer import Trainer

TRAINERS = {"custom_loop": custom_loop.trainer, "fit": fit.trainer, "own_loop": own_loop.trainer}
_VERSIONS = ("psrun", "tensorflow", "tf-keras", "hydra-core")
_STOP_WITHIN_S = 25.0  # less than the 30 s that supervisors, schedulers and container runtimes wait before they kill


def run(
    run_config: RunConfig,
    folder: RunFolder,
    console: Sink,
    stop: Stop,
    *,
    started_s: float,
    topology: Topology | None = None,
    give_up: Callable[[PsrunError], None] | None = None,
    connect: Callable[..., strategy.Distribution] = strategy.connect,
) -> None:
    """Trains as configured; what came of it is in the run folder.

    Args:
      topology: of a cluster of several processes; None where this is the only one.
      give_up: ends this process with an error, whatever its threads are doing; for clusters that nobody supervises.
      connect: starts what the cluster needs and connects to it; tests hand in one that uses servers already there.

    Raises:
      PsrunError: the run failed.
    """
    warn = Reporter([folder, console], started_s=started_s).warn
    reporter = Reporter([folder, *choosing.make(run_config, folder, warn), console], started_s=started_s)
    chief = Chief(run_config, folder, reporter, topology, give_up)
    try:
        strategy.prepare(run_config.cluster, topology)
        if run_config.cluster.has_synchronous_workers:
            stop.install()  # again: with its collectives TensorFlow takes SIGTERM for itself
        reporter.emit("start", title=_title(run_config), run_folder=str(folder.path), notes=notes(run_config))
        versions = {name: version(name) for name in _VERSIONS}
        folder.record("cluster", cluster=_cluster(run_config.cluster, topology), versions=versions)
        trainer, hooks = TRAINERS[run_config.trainer.kind](run_config), Hooks(run_config, folder, reporter)
        source = load.load_source(run_config, chief.preparing, folder)
        run_config = load.planned(run_config, source)
        folder.record("data", data=load.facts(run_config, source))
        if guessed := getattr(source, "guessed", ()):
            reporter.emit("features", features=guessed)
        for text in getattr(source, "warnings", ()):
            reporter.warn(text)
        compiled_model.start_afresh(run_config.seed)
        with chief.connected(connect) as distribution:
            if run_config.data_service:
                distribution = replace(distribution, data_service=_data_service(run_config.cluster, topology))
            if run_config.cluster.has_parameter_servers:
                folder.record("replicas", **_replicas(distribution))
            built = compiled_model.build(run_config, source, distribution)
            compiled_model.build_state(built)
            if built.model.unused:
                names = ", ".join(built.model.unused)
                reporter.warn(
                    f"this model uses no categories: {names} is left out; choose model=wide_deep for embeddings"
                )
            if built.sharding is not None:
                folder.record("sharding", sharding=built.sharding)
            lookups = compiled_model.decide_lookups(built)
            if lookups:
                reporter.emit("lookups", lookups=[asdict(lookup) for lookup in lookups])
            _report_placement(built, reporter)
            _train(built, trainer, hooks, folder, reporter, chief, stop)
    finally:
        chief.close()
        reporter.close()


def _replicas(distribution: strategy.Distribution) -> dict[str, Any]:
    """How many replicas each worker has, and on which of its devices."""
    names = [device.removeprefix("/device:") for device in distribution.strategy.extended.worker_devices]
    return {"per_worker": len(names), "devices": names}


def _data_service(cluster: choices.Cluster, topology: Topology | None) -> str:
    """Where the dispatcher is asked; it is started where this is the only process."""
    return data_service.start_here(cluster.num_data_workers) if topology is None else data_service.target(topology)


def notes(run_config: RunConfig) -> list[str]:
    """What a person should know of this run before it starts."""
    found = []
    if run_config.partitioner.splits and not run_config.cluster.has_parameter_servers:
        found.append(f"partitioner={run_config.partitioner.kind} has no effect without parameter servers")
    return found


def _title(run_config: RunConfig) -> str:
    model = run_config.model.name.rpartition(".")[2]
    return f"{model} on {run_config.cluster.title}, {run_config.trainer.kind}"


def _cluster(cluster: choices.Cluster, topology: Topology | None) -> dict[str, Any]:
    """The cluster in run.json, with the workers that train."""
    num_workers, num_ps = cluster.num_workers, cluster.num_ps
    if topology is not None and cluster.has_parameter_servers:  # of the workers one may be set aside
        num_workers, num_ps = len(topology.of("worker")), len(topology.of("ps"))
    return {"topology": cluster.kind, "num_workers": num_workers, "num_ps": num_ps}


def _report_placement(built: compiled_model.Program, reporter: Reporter) -> None:
    placed = observe(built)
    rows = [asdict(shard) for shard in placed]
    found = placement.balance(placed)
    reporter.emit("placement", placement=rows, **asdict(found))
    for text in cost.of_dense_tables(built.optimizer, placed):
        reporter.warn(text)
    run_config = built.config
    wanted = run_config.partitioner.num_shards
    if run_config.cluster.has_parameter_servers and wanted is not None:
        placement.check_rows(placed, wanted)
        short = placement.with_fewer_rows(placed, wanted)
        if short:
            reporter.warn(f"cut in fewer than {wanted} shards, one a row: {', '.join(short)}")


def observe(built: compiled_model.Program) -> list[placement.Placed]:
    """Where every variable of the program lives."""
    return [
        *placement.observed("model", built.network.variables),
        *placement.observed("optimizer", built.optimizer.variables()),
        *placement.observed("metric", compiled_model.metric_variables(built)),
    ]


def _train(
    built: compiled_model.Program,
    trainer: Trainer,
    hooks: Hooks,
    folder: RunFolder,
    reporter: Reporter,
    chief: Chief,
    stop: Stop,
) -> None:
    run_config = built.config
    saving, start = None, Position()
    following = Following(built, reporter, folder)
    if isinstance(run_config.checkpoint, choices.EpochCheckpoints):
        when = run_config.checkpoint
        if folder.whole is not folder:  # a replica, whose files nobody will read: as few as can be
            when = replace(when, max_to_keep=1, best_metric=None)
        saving = Saving(Checkpoints(built, Store(folder.checkpoints), when, reporter.warn), when, reporter, folder)
        found = saving.restore()
        start = found.position if found else start
        if found is not None:
            chief.restored(found.step)
            following.go_on(found.step)
    else:
        backup = resume.restored_by_trainer(built, trainer, reporter)
        if backup is not None:
            start = backup
            following.go_on(backup.scheduled)
    start = resume.taken_up(built, start, reporter)
    synchronous = run_config.cluster.has_synchronous_workers
    session = Session(
        built,
        reporter,
        evaluation=modes.make(built),
        saving=saving,
        following=following,
        folder=folder,
        start=start,
        stop=stop,
        hooks=hooks,
        lockstep=Lockstep(task_files.stop_marker(folder.whole.path), leads=folder.whole is folder)
        if synchronous
        else None,
    )
    chief.session, chief.pulse = session, session.monitor
    session.monitor.start()
    hooks.start(built, session.monitor)
    stop.defer(_STOP_WITHIN_S)
    try:
        trainer.train(built, session)
        if start.epochs >= run_config.trainer.epochs or session.ends_early:
            session.catch_up()
        session.training_ends()
        hooks.end()
        if run_config.export.at_end and folder.whole is folder:
            session.monitor.state = "exporting"
            _export(built, folder, reporter)
    finally:
        hooks.stop()
        session.monitor.stop()
        folder.record("trained", **_result(session, reporter))
        _record_evaluator(run_config, folder)
    result = folder.stored()
    told = ("metrics", "time_to_first_step_s", "steps_per_s", "examples_per_s", "step_time")
    last_step = session.monitor.last_step
    own = {"steps": last_step - session.first_step, "seconds": round(time.time() - psutil.Process().create_time(), 3)}
    reporter.emit("end", step=last_step, this_process=own, **{key: result.get(key) for key in told})


def _record_evaluator(run_config: RunConfig, folder: RunFolder) -> None:
    """Puts what the evaluator task found last into run.json: it may have ended before the training."""
    if run_config.evaluation.runs_on == "evaluator":
        for found, _ in list(meters.kept(folder.evaluations, run_config.evaluation.kind))[-1:]:
            folder.record("evaluation", **asdict(found))


def _export(built: compiled_model.Program, folder: RunFolder, reporter: Reporter) -> None:
    store = Store(folder.checkpoints)
    found = load_model.load(built.config, built.source, store, reporter.warn)
    path = export.write(found, folder.path / "export")
    reporter.emit("export", step=found.checkpoint.step, path=str(path))


def _result(session: Session, reporter: Reporter) -> dict[str, Any]:
    """The keys of run.json that are known once the training has ended, well or not."""
    clock, monitor = session.clock, session.monitor
    rate = clock.rate()
    first_s = monitor.first_step_s
    return {
        "steps": session.steps,
        "steps_per_s": rate,
        "examples_per_s": None if rate is None else rate * session.program.config.data.global_batch_size,
        "time_to_first_step_s": None if first_s is None else round(reporter.wall_s - (time.monotonic() - first_s), 3),
        "step_time": asdict(session.step_time) if session.step_time else None,
        "wall_s": round(reporter.wall_s, 3),
        "pid": os.getpid(),
    }
