"""The coordinator: connects to the cluster, builds the program, trains it and reports."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from psrun.checkpoint import export, load_model
from psrun.checkpoint.checkpoints import Checkpoints
from psrun.checkpoint.manifest import Position
from psrun.checkpoint.store import Store
from psrun.cluster import strategy
from psrun.config import choices
from psrun.config.run_config import FROM_DATA, RunConfig
from psrun.config.topology import Task
from psrun.data import hashes, load
from psrun.data.source import DataSource
from psrun.process import Stop
from psrun.program import inventory
from psrun.program.compiled_model import Program
from psrun.results import staleness, task_files
from psrun.results.events import Reporter
from psrun.results.run_folder import PAUSED, RunFolder, flat, write_config
from psrun.results.system_usage import Sampler, Usage
from psrun.results.trackers.tracking import tracker_sinks
from psrun.roles.chief import Chief
from psrun.roles.recording import Recording
from psrun.roles.task_context import TaskContext
from psrun.training import actions, custom_loop, fit, own_loop, resume
from psrun.training.checkpoint_schedule import CheckpointSchedule
from psrun.training.evaluation import meters, modes
from psrun.training.hooks import Hooks
from psrun.training.loop import Trainer, TrainingRun
from psrun.training.metric_policies import MetricPolicies
from psrun.training.profile_window import ProfileWindow
from psrun.training.synchronized_stop import SynchronizedStop

TRAINERS = {"custom_loop": custom_loop.trainer, "fit": fit.trainer, "own_loop": own_loop.trainer}
_VERSIONS = ("psrun", "tensorflow", "tf-keras", "keras", "hydra-core")
_STOP_WITHIN_S = 25.0  # less than the 30 s after which supervisors, schedulers and container runtimes kill


def run(run_config: RunConfig, context: TaskContext, stop: Stop) -> None:
    """Trains as configured; the result is in the run folder.

    Raises:
      PsrunError: the run failed.
    """
    folder = context.folder
    warn = Reporter([folder, context.console], started_s=context.started_s).warn
    sinks = [folder, *tracker_sinks(run_config, folder, warn), context.console]
    reporter = Reporter(sinks, started_s=context.started_s)
    # A replica of synchronous workers has a folder within that of the run.
    recording = Recording(folder, Path.cwd()) if folder.root is folder else None
    with Chief(run_config, context, reporter) as chief:
        _prepare(run_config, context, stop)
        reporter.emit("start", title=run_config.title, run_folder=str(folder.path), notes=run_config.notes)
        versions = {name: version(name) for name in _VERSIONS}
        folder.emit("cluster", cluster=chief.cluster_facts, versions=versions)
        if run_config.cluster.has_parameter_servers or run_config.consistency.one_process:
            folder.emit("consistency", **run_config.consistency.facts)
        trainer = TRAINERS[run_config.trainer.kind](run_config)
        hooks = Hooks(run_config, folder, reporter)
        source = load.load_source(run_config, folder.stored().get("data"), chief.preparing, folder.root.path)
        stop.raise_if_requested()  # also where something discarded the exception of a signal
        run_config = _planned(run_config, source, reporter, folder)
        _report_data(run_config, source, reporter, folder)
        with chief.program(run_config, source) as program:
            inventory.report(program, reporter, folder)
            if recording is not None:
                recording.begin(hashes.files_of(source, run_config.data.target.options))
            stop.raise_if_requested()
            _train(program, trainer, hooks, chief, stop)
            if recording is not None:
                recording.end()


def _prepare(run_config: RunConfig, context: TaskContext, stop: Stop) -> None:
    """Prepares TensorFlow in this process; with synchronous workers, all of them together."""
    cluster = run_config.cluster
    if context.topology is not None and isinstance(cluster, choices.MultiWorkerMirrored):

        def is_up(task: Task) -> bool:
            return task_files.read(context.folder.root.path, task) is not None

        strategy.wait_for_tasks(context.topology, is_up, within_s=cluster.restart.start_timeout_s)
    strategy.prepare(cluster, context.topology)
    if cluster.has_synchronous_workers:
        stop.handle()  # again: TensorFlow's collectives install a SIGTERM handler


def _planned(run_config: RunConfig, source: DataSource, reporter: Reporter, folder: RunFolder) -> RunConfig:
    """The run with all numbers that follow from the data; config.yaml gets them, so that a resumed run keeps them."""
    planned = load.planned(run_config, source, reporter.warn)
    if planned.raw != run_config.raw and folder.root is folder:
        write_config(folder.path, planned.raw)
        values: dict[str, Any] = flat(planned.raw)
        numbers = {key: values[key] for key in FROM_DATA}
        if planned.learning_rate_falls:
            rate = planned.optimizer.options.get("learning_rate")
            numbers["optimizer.learning_rate"] = f"{rate:g}, falling to 0 over the epochs"
        reporter.emit("planned", **numbers)
    return planned


def _report_data(run_config: RunConfig, source: DataSource, reporter: Reporter, folder: RunFolder) -> None:
    folder.emit("data", data=load.facts(run_config, source))
    guessed = getattr(source, "guessed", ())
    notes = getattr(source, "notes", ())
    if guessed or notes:
        reporter.emit("features", features=guessed, notes=list(notes))
    for text in getattr(source, "warnings", ()):
        reporter.warn(text)


def _train(program: Program, trainer: Trainer, hooks: Hooks, chief: Chief, stop: Stop) -> None:
    run, profile = _make_run(program, trainer, hooks, chief, stop)
    folder = chief.folder
    reporter = chief.reporter
    chief.follow(run)
    run.monitor.start()
    sampler = _sampler(run)
    hooks.start(program, run.monitor)
    stop.defer(_STOP_WITHIN_S)
    try:
        trainer.train(program, run)
        run.end()
        if run.is_paused:
            folder.emit("search", state=PAUSED, epoch=run.epoch.number)
        else:
            stop.raise_if_requested()
            if program.config.export.at_end and folder.root is folder:
                run.monitor.begin("exporting")
                stop.defer(None)  # an export that is cut short is made again by a resumed run
                _export(program, folder, reporter)
    finally:
        hooks.stop()
        if profile is not None:
            profile.close()
        if sampler is not None:
            sampler.stop()
        run.monitor.stop()
        folder.emit("trained", **_result(run, reporter))
        _record_evaluator(program.config.evaluation, folder)
    result = folder.stored()
    keys = ("metrics", "time_to_first_step_s", "steps_per_s", "examples_per_s", "step_time")
    last_step = run.monitor.last_step
    stale = staleness.brief(result.get("staleness"))
    own = {"steps": last_step - run.first_step, "seconds": round(time.time() - psutil.Process().create_time(), 3)}
    facts = {"this_process": own, "staleness": stale, "ended_early": run.why_ends_early}
    reporter.emit("end", step=last_step, **facts, **{key: result.get(key) for key in keys})


def _sampler(run: TrainingRun) -> Sampler | None:
    """Samples what the tasks of the run use; None if nobody asked for it, or another task does."""
    every_s = run.program.config.system.every_s
    folder = run.folder
    if every_s is None or folder.root is not folder:
        return None

    def read() -> dict[str, Usage]:
        beats = task_files.beats(folder.path)
        return {str(task): beat.used for task, beat in beats.items() if beat.used is not None}

    sampler = Sampler(every_s, read, lambda data: run.reporter.emit("system", step=run.monitor.last_step, **data))
    sampler.start()
    return sampler


def _make_run(
    program: Program, trainer: Trainer, hooks: Hooks, chief: Chief, stop: Stop
) -> tuple[TrainingRun, ProfileWindow | None]:
    """The training, with the variables and the position of the checkpoint or backup that it resumes from, if any.

    Also the profile of some of its steps; None without one.
    """
    folder = chief.folder
    reporter = chief.reporter
    policies = MetricPolicies(program, reporter, folder)
    schedule = _schedule(program, folder, reporter)
    start = Position()
    if schedule is not None:
        if (restored := schedule.restore()) is not None:
            start = restored.position
            chief.restored(restored.step)
            policies.go_on(restored.step)
    elif (backup := resume.restored_by_trainer(program, trainer, reporter)) is not None:
        start = backup
        policies.go_on(backup.scheduled)
    lockstep = SynchronizedStop(task_files.stop_marker(folder.root.path), leads=folder.root is folder)
    run = TrainingRun(
        program,
        reporter,
        folder=folder,
        start=resume.taken_up(program, start, reporter),
        stop=stop,
        lockstep=lockstep if program.config.cluster.has_synchronous_workers else None,
    )
    steps = program.config.profile.steps
    profile = None if steps is None else ProfileWindow(run, steps, chief.topology)
    run.actions = actions.in_order(
        run, hooks=hooks, policies=policies, schedule=schedule, evaluator=modes.make(program), profile=profile
    )
    return run, profile


def _schedule(program: Program, folder: RunFolder, reporter: Reporter) -> CheckpointSchedule | None:
    """The schedule of the run's checkpoints; None if psrun takes none."""
    keys = program.config.checkpoint
    if not isinstance(keys, choices.EpochCheckpoints):
        return None
    if folder.root is not folder:  # a replica, whose files are not used: as few as possible
        keys = replace(keys, max_to_keep=1, best_metric=None)
    checkpoints = Checkpoints(program, Store(folder.checkpoints), keys, reporter.warn)
    return CheckpointSchedule(checkpoints, keys, reporter, folder)


def _record_evaluator(evaluation: choices.EvaluationChoice, folder: RunFolder) -> None:
    """Records the last result of the evaluator task in run.json: the task may have exited before the training."""
    if evaluation.runs_on == "evaluator":
        for result, _ in list(meters.kept(folder.evaluations, evaluation.kind))[-1:]:
            folder.emit("last_evaluation", **asdict(result))


def _export(program: Program, folder: RunFolder, reporter: Reporter) -> None:
    loaded = load_model.load(program.config, program.source, Store(folder.checkpoints), reporter.warn)
    path = export.write(loaded, folder.path / "export", reporter.warn)
    reporter.emit("export", step=loaded.checkpoint.step, path=str(path))


def _result(run: TrainingRun, reporter: Reporter) -> dict[str, Any]:
    """The keys of run.json that are known once the training has ended, also after an error."""
    clock = run.clock
    monitor = run.monitor
    rate = clock.rate()
    first_s = monitor.first_step_s
    return {
        "steps": run.steps,
        "steps_per_s": rate,
        "examples_per_s": None if rate is None else rate * run.program.examples_per_step,
        "time_to_first_step_s": None if first_s is None else round(reporter.wall_s - (time.monotonic() - first_s), 3),
        "step_time": asdict(run.step_time) if run.step_time else None,
        "wall_s": round(reporter.wall_s, 3),
        "pid": os.getpid(),
    }
