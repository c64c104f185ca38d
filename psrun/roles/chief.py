"""The chief: connects to the cluster, builds the program, trains it, records and reports.

A replica, which is a worker of a synchronous cluster, trains in step with the chief.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from psrun import files, parts
from psrun.checkpoint import trained_model
from psrun.checkpoint.checkpoints import checkpoints_of
from psrun.checkpoint.storage import Position, Store
from psrun.cluster import strategy
from psrun.cluster.probe import PortReservation, ServerStatus, statuses
from psrun.config import choices
from psrun.config.run_config import FROM_DATA, RunConfig
from psrun.config.topology import CHIEF, Task
from psrun.data import loading, storage
from psrun.data.source import DataSource, Remarks
from psrun.errors import ClusterError, DataError, TaskLostError
from psrun.launch.losses import Loss, Recoveries, TrainingStatus, earlier_loss
from psrun.launch.unsupervised import ANSWER_WITHIN_S, Watch
from psrun.process import Stop
from psrun.program import build
from psrun.program.batch_checks import check_arrays
from psrun.program.build import build_program, build_state, start_afresh
from psrun.program.compiled_model import Program
from psrun.results import events, provenance, run_folder, task_files
from psrun.results.events import PENDING_LOSS, Reporter
from psrun.results.provenance import DIFF, WorkTree
from psrun.results.run_folder import PAUSED, RunFolder, flat, write_config
from psrun.results.task_files import Heartbeat, HeartbeatWriter, Sampler, Usage
from psrun.results.tracking import tracker_sinks
from psrun.roles import planner
from psrun.roles.table import TaskContext
from psrun.tf_internals.servers import incarnation
from psrun.training import actions, checkpointing, custom_loop, evaluators, failures, fit, own_loop
from psrun.training.actions import ProfileWindow
from psrun.training.checkpointing import CheckpointSchedule, Machine
from psrun.training.hooks import Hooks
from psrun.training.loop import SynchronizedStop, Trainer, TrainingRun
from psrun.training.metric_policies import metric_policies
from psrun.training.progress import Pulse, StartClock

TRAINERS = {"custom_loop": custom_loop.trainer, "fit": fit.trainer, "own_loop": own_loop.trainer}
_VERSIONS = ("psrun", "tensorflow", "tf-keras", "keras", "hydra-core")
_STOP_WITHIN_S = 25.0  # less than the 30 s after which supervisors, schedulers and container runtimes kill
_REPORT_EVERY_S = 5.0
_GIT_WITHIN_S = 15.0  # of two commands, which have bounds of their own
_HASHES_WITHIN_S = 10.0


def run(run_config: RunConfig, context: TaskContext, stop: Stop) -> None:
    """Trains as configured; the result is in the run folder.

    Raises:
      PsrunError: the run failed.
    """
    folder = context.folder
    warn = Reporter([folder, context.console], started_s=context.started_s).warn
    sinks = [folder, *tracker_sinks(run_config, folder, warn), context.console]
    reporter = Reporter(sinks, started_s=context.started_s)
    recording = None
    if folder.root is folder:  # a replica of synchronous workers has a folder within the run's folder
        recording = Recording(folder, Path.cwd())
        recording.start()
    with Chief(run_config, context, reporter) as chief:
        chief.start.ends("import")
        _prepare(run_config, context, stop)
        reporter.emit("start", title=run_config.title, run_folder=str(folder.path), notes=run_config.notes)
        versions = {name: version(name) for name in _VERSIONS}
        folder.emit("cluster", cluster=chief.cluster_facts, versions=versions)
        if run_config.cluster.has_workers:
            folder.emit("consistency", **run_config.consistency.facts)
        trainer = TRAINERS[run_config.trainer.kind](run_config)
        hooks = Hooks(run_config, folder, reporter)
        source = loading.load_source(run_config, folder.data_facts(), chief.preparing, folder.root.path)
        stop.raise_if_requested()  # also where something discarded the exception of a signal
        run_config = _planned(run_config, source, reporter, folder)
        _report_data(run_config, source, reporter, folder)
        chief.start.ends("data")
        with chief.program(run_config, source) as program:
            build.report_program(program, reporter, folder)
            if recording is not None:
                changed = recording.begin(storage.files_of_source(source, run_config.data.target.options))
                if changed:
                    reporter.warn(f"the code changed since the run last trained: {', '.join(changed)}")
            stop.raise_if_requested()
            chief.start.ends("build")
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
    planned = loading.planned(run_config, source, reporter.warn)
    numbers: dict[str, Any] = {}
    if planned.raw != run_config.raw and folder.root is folder:
        write_config(folder.path, planned.raw)
        values: dict[str, Any] = flat(planned.raw)
        numbers |= {key: values[key] for key in FROM_DATA}
        if planned.learning_rate_falls:
            for target in planned.optimizers:
                if target.key in planned.chosen_rates:
                    rate = target.options["learning_rate"]
                    numbers[f"{target.key}.learning_rate"] = f"{rate:g}, falling to 0 over the epochs"
    if planned.counts_default_executions and folder.root is folder:
        numbers["trainer.steps_per_execution"] = planned.trainer.num_steps_packed
    if numbers:
        reporter.emit("planned", **numbers)
    if warning := planned.consistency.never_waits(planned.trainer):
        reporter.warn(warning)
    if planned.chosen_rates and folder.root is folder:
        # config.yaml keeps `auto`: the rate falls over all epochs, also over those of a resumed run.
        (rate, *_) = [each.options["learning_rate"] for each in planned.optimizers if each.key in planned.chosen_rates]
        folder.emit("chosen", learning_rate=rate, learning_rate_falls=planned.learning_rate_falls)
    return planned


def _report_data(run_config: RunConfig, source: DataSource, reporter: Reporter, folder: RunFolder) -> None:
    folder.emit_data(loading.facts(run_config, source))
    remarks = Remarks.of(source)
    if remarks.guessed or remarks.notes:
        reporter.emit("features", features=remarks.guessed, notes=list(remarks.notes))
    for text in remarks.warnings:
        reporter.warn(text)


def _train(program: Program, trainer: Trainer, hooks: Hooks, chief: Chief, stop: Stop) -> None:
    schedule = _schedule(program, chief)
    run, profile = _make_run(program, trainer, hooks, schedule, chief, stop)
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
        if schedule is not None:
            run.monitor.begin("saving")
            schedule.close()
        if profile is not None:
            profile.close()
        if sampler is not None:
            sampler.stop()
        run.monitor.stop()
        folder.emit("trained", **_result(run, reporter, chief.start))
        _record_evaluator(program.config.evaluation, folder)
    _report_end(run, folder.stored(), reporter)


def _report_end(run: TrainingRun, result: Mapping[str, Any], reporter: Reporter) -> None:
    """Reports the end of a training with what run.json has as `result`."""
    last_step = run.monitor.last_step
    lived_s = time.time() - psutil.Process().create_time()
    best = None
    follows = None
    if run.folder.root is run.folder:
        best = _best(run, result)
        follows = _next(run, best)
    reporter.emit(
        "end",
        step=last_step,
        this_process={"steps": last_step - run.first_step, "seconds": round(lived_s, 3)},
        staleness=events.brief_staleness(result.get("staleness")),
        ended_early=run.why_ends_early,
        best=best,
        next=follows,
        metrics=result.get("metrics"),
        time_to_first_step_s=result.get("time_to_first_step_s"),
        time_to_first_step_by_part_s=result.get("time_to_first_step_by_part_s"),
        steps_per_s=result.get("steps_per_s"),
        examples_per_s=result.get("examples_per_s"),
        step_time=result.get("step_time"),
    )


def _best(run: TrainingRun, result: Mapping[str, Any]) -> dict[str, Any] | None:
    """The best evaluation of the training, with its checkpoint if that is kept; None if nothing was evaluated."""
    config = run.program.config
    metric, mode = config.compared_by
    best = events.best_measured(run_folder.stored_events(run.folder.path), metric, mode)
    if best is None:
        return None
    checkpoint = None
    for row in result.get("checkpoints", []):
        if row["good"] and row["step"] == best.step:
            checkpoint = row["path"]
    keeps = None
    if config.checkpoint.are_taken and config.checkpoint.best_metric is None:
        keeps = f"checkpoint.best_metric={metric} checkpoint.best_mode={mode}"
    return {
        "metric": metric,
        "value": best.metrics[metric],
        "step": best.step,
        "epoch": best.epoch,
        "epochs": run.num_epochs,
        "metrics": {name: value for name, value in best.metrics.items() if name.startswith("val_")},
        "checkpoint": checkpoint,
        "keeps": keeps,
        "is_final": config.evaluation.runs_on != "evaluator",  # whose last evaluation may still come
    }


def _next(run: TrainingRun, best: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The command that a person may want next: its word, and its arguments after the run folder. None for no command.

    A training that a search has paused needs none: the search continues it.

    Args:
      best: the best evaluation, as `_best` returns it.
    """
    config = run.program.config
    if run.is_paused:
        return None
    if not run.scheduled and not run.ends_early:
        return {"command": "resume", "arguments": [f"trainer.epochs={2 * run.num_epochs}"]}
    takes_other_rows = "eval_path" in config.data.target.options
    if takes_other_rows and config.checkpoint.are_taken and not config.cluster.spans_machines:
        which = []
        if best is not None and best["checkpoint"] and best["step"] != run.monitor.last_step:
            which.append(f"restore={best['step']}")
        return {"command": "predict", "arguments": [*which, *_predicted(config)]}
    return {"command": "report", "arguments": []}


def _predicted(config: RunConfig) -> list[str]:
    """The arguments of `psrun predict` for what a model of this kind is for: items of each user, or other rows."""
    evaluation = config.evaluation
    if evaluation.user is None or evaluation.item is None or parts.output("predict.top_k") is None:
        return ["data.eval_path=FILE"]
    arguments = ["predict.top_k=10"]
    if config.cluster.has_parameter_servers:
        arguments.append("cluster=none")  # one process computes it, with the whole model
    return arguments


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
    program: Program, trainer: Trainer, hooks: Hooks, schedule: CheckpointSchedule | None, chief: Chief, stop: Stop
) -> tuple[TrainingRun, ProfileWindow | None]:
    """The training, with the variables and the position of the checkpoint or backup that it resumes from, if any.

    Also the profile of some of its steps; None without one.
    """
    folder = chief.folder
    reporter = chief.reporter
    policies = metric_policies(program, reporter, folder)
    start: Position | None = None
    if schedule is not None:
        if (restored := schedule.restore()) is not None:
            start = restored.position
            chief.restored(restored.step)
            policies.go_on(restored.step)
    elif (backup := checkpointing.position_of_backup(program, trainer, reporter)) is not None:
        start = backup
        policies.go_on(backup.scheduled)
    if start is None:
        start = Position()
        if program.config.resume is not None:
            reporter.emit("not_restored")
    lockstep = SynchronizedStop(task_files.stop_marker(folder.root.path), leads=folder.root is folder)
    run = TrainingRun(
        program,
        reporter,
        folder=folder,
        start=checkpointing.adapted_position(program, start, reporter),
        stop=stop,
        lockstep=lockstep if program.config.cluster.has_synchronous_workers else None,
    )
    steps = program.config.profile.steps
    profile = None if steps is None else ProfileWindow(run, steps, chief.topology)
    planned = actions.in_order(
        run, hooks=hooks, policies=policies, schedule=schedule, evaluator=evaluators.make(program), profile=profile
    )
    run.plan(planned)
    return run, profile


def _schedule(program: Program, chief: Chief) -> CheckpointSchedule | None:
    """The schedule of the run's checkpoints; None if psrun takes none."""
    keys = program.config.checkpoint
    if not isinstance(keys, choices.EpochCheckpoints):
        return None
    folder = chief.folder
    if folder.root is not folder:  # a replica, whose files are not used: as few as possible
        keys = replace(keys, max_to_keep=1, best_metric=None)
    checkpoints = checkpoints_of(program, Store(folder.checkpoints), keys, chief.reporter.warn)
    return CheckpointSchedule(checkpoints, keys, chief.reporter, folder, chief.machine_of)


def _record_evaluator(evaluation: choices.EvaluationChoice, folder: RunFolder) -> None:
    """Records the last result of the evaluator task in run.json: the task may have exited before the training."""
    if evaluation.runs_on == "evaluator":
        for result, _ in list(evaluators.kept_evaluations(folder.evaluations, evaluation.kind))[-1:]:
            folder.emit("last_evaluation", **asdict(result))


def _export(program: Program, folder: RunFolder, reporter: Reporter) -> None:
    store = Store(folder.checkpoints)
    tables = program.config.export.tables
    loaded = trained_model.load(program.config, program.source, store, reporter.warn, tables=tables)
    path = trained_model.export(loaded, folder.path / "export", reporter.warn)
    reporter.emit("export", step=loaded.checkpoint.step, path=str(path))


def _result(run: TrainingRun, reporter: Reporter, start: StartClock) -> dict[str, Any]:
    """The keys of run.json that are known once the training has ended, also after an error."""
    clock = run.clock
    monitor = run.monitor
    rate = clock.rate()
    if run.program.config.cluster.played_by:  # nobody shall take the rate of this process for that of its workers
        rate = None
    first_step_s = None
    if monitor.first_step_s is not None:
        first_step_s = round(reporter.wall_s - (time.monotonic() - monitor.first_step_s), 3)
    return {
        "steps": run.steps,
        "steps_per_s": rate,
        "examples_per_s": None if rate is None else rate * run.program.examples_per_step,
        "time_to_first_step_s": first_step_s,
        "time_to_first_step_by_part_s": start.parts(first_step_s),
        "step_time": asdict(run.step_time) if run.step_time else None,
        "wall_s": round(reporter.wall_s, 3),
        "pid": os.getpid(),
    }


def run_replica(run_config: RunConfig, context: TaskContext, stop: Stop) -> None:
    """Trains. All tasks write checkpoints together, since reading a variable can require all of them.

    Raises:
      PsrunError: the run failed.
    """
    assert context.topology is not None
    shared = task_files.shared(context.folder.path)
    shared.mkdir(exist_ok=True)
    scratch = shared / f"{context.topology.me}-own"
    shutil.rmtree(scratch, ignore_errors=True)  # of the process before this one
    scratch.mkdir()
    own = RunFolder(scratch, root=context.folder)
    run(run_config, replace(context, folder=own), stop)


class Chief:
    """This process as the chief of its cluster, from its start to its end.

    The context reserves its address, writes its heartbeat, and closes the reporter at the end.

    Attributes:
      folder, reporter: of the task.
      pulse: the heartbeat of this process.
      start: where the time to the first step goes.
      topology: of a cluster of several processes; None for a single process.
    """

    def __init__(self, run_config: RunConfig, context: TaskContext, reporter: Reporter) -> None:
        self.folder = context.folder
        self.reporter = reporter
        self.pulse = Pulse()
        self.start = StartClock(lambda: reporter.wall_s)
        self._mode = run_config.mode
        self._training: TrainingRun | None = None
        self._program: Program | None = None
        self._cluster = run_config.cluster
        self._partitioner = run_config.partitioner
        self.topology = context.topology
        self._give_up = context.give_up
        self._connect = context.connect or functools.partial(strategy.connect, give_up=context.give_up)
        self._reported_s = time.monotonic()
        self._recoveries = Recoveries(reporter)
        self._loss: Loss | None = None
        self._reservation: PortReservation | None = None
        self._heartbeat: HeartbeatWriter | None = None

    def __enter__(self) -> Chief:
        if self._cluster.started_elsewhere:  # whoever started its tasks restarts them, but records nothing
            self._loss = self._earlier_loss()
        self._reservation = self._reserved_port()
        # Also if this is the only process: a sweep shows its progress. A running run has its own heartbeat.
        if self.topology is not None or self._mode == "train":
            me = CHIEF if self.topology is None else self.topology.me
            self._heartbeat = HeartbeatWriter(self.folder.root.path, me, self._current_heartbeat)
            self._heartbeat.start()
        return self

    def _reserved_port(self) -> PortReservation | None:
        """For servers, which exit if nobody listens for too long: TensorFlow listens only once the data is ready."""
        if self.topology is None or not self._cluster.has_server_processes or CHIEF not in self.topology.addresses:
            return None
        return PortReservation(self.topology.addresses[CHIEF])

    def __exit__(self, *error: object) -> None:
        if self._heartbeat:
            self._heartbeat.stop()
            if self.topology is None:
                with contextlib.suppress(OSError):
                    task_files.shared(self.folder.path).rmdir()
        if self._reservation:
            self._reservation.close()
        self.reporter.close()

    def restored(self, step: int) -> None:
        """Call when the variables have been restored to `step`, before they are used."""
        self._recoveries.restored(step)

    def follow(self, training: TrainingRun) -> None:
        """Shows the progress of `training` in the heartbeat, and names its failures. Call before its first step."""
        self._training = training
        self.pulse = training.monitor

    def machine_of(self, name: str) -> Machine:
        """The machine of the task `name`, with the memory that is free for this run."""
        task = Task.named(name)
        addresses = {} if self.topology is None else self.topology.addresses
        if task is None or task not in addresses or not self._cluster.spans_machines:
            num_copies = 1
            if self._cluster.has_synchronous_workers:  # each has all variables
                num_copies = self._cluster.num_workers or 1
            return Machine("this machine", task_files.free_memory_bytes() // num_copies)
        beat = task_files.read(self.folder.root.path, task)
        used = None if beat is None else beat.used
        host = addresses[task].rpartition(":")[0]
        return Machine(host, None if used is None else used.free_bytes)

    def preparing(self, text: str) -> None:
        """Call repeatedly while data is prepared or predictions are written: counts as progress, and reports `text` at
        intervals.
        """
        self.pulse.advance()
        if time.monotonic() - self._reported_s > _REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            self.reporter.emit("preparing", text=text)

    @property
    def cluster_facts(self) -> dict[str, Any]:
        """The cluster in run.json, with the workers that train."""
        num_workers = self._cluster.num_workers
        num_ps = self._cluster.num_ps
        if self.topology is not None and self._cluster.has_parameter_servers:  # one of the workers may be set aside
            num_workers = len(self.topology.of("worker"))
            num_ps = len(self.topology.of("ps"))
        return {"topology": self._cluster.kind, "num_workers": num_workers, "num_ps": num_ps}

    @contextmanager
    def program(self, run_config: RunConfig, source: DataSource) -> Iterator[Program]:
        """Builds the run's program on the cluster. Servers exit at the end unless there was an error.

        Raises:
          ConfigError: model, data and options do not fit together.
          PsrunError: a server did not start or was lost, a step failed, or data is wrong.
        """
        traffic = self._played_traffic(run_config, source)
        with self._connected(run_config.seed) as distribution:
            program = build_program(run_config, source, replace(distribution, traffic=traffic))
            self._program = program
            build_state(program)
            if run_config.mode == "train":
                check_arrays(source, program.data.checks)
            yield program

    def _played_traffic(self, run_config: RunConfig, source: DataSource) -> list[tuple[int, int]]:
        """The traffic of workers that this process is going to play; empty for others.

        It follows from a plan, since variables of this process are neither cut nor placed as on servers. A plan resets
        names and random numbers, so it is made first.
        """
        if run_config.mode != "train" or not self._cluster.played_by:
            return []
        with failures.named(lambda: None):
            return planner.worker_traffic(planner.make(run_config, source), run_config)

    @contextmanager
    def _connected(self, seed: int) -> Iterator[strategy.Distribution]:
        """Connects to the cluster once its servers are up, with reset names and random numbers."""
        start_afresh(seed)
        cluster = self._cluster
        topology = self.topology
        if topology is not None and cluster.has_server_processes:
            error = TaskLostError if cluster.started_elsewhere else ClusterError  # a supervisor restarts servers
            strategy.wait_for_servers(topology, within_s=cluster.connect_timeout_s, error=error)
        with (
            self._watched() as check_servers,
            failures.named(lambda: self._training, check_servers, lambda: self._program),
        ):
            if self._reservation:
                self._reservation.close()
            distribution = self._connect(cluster, self._partitioner, topology)
            self.start.ends("connect")
            yield distribution
        if topology is not None and cluster.started_elsewhere:
            strategy.signal_run_over(topology)  # in other clusters the supervisor does

    @contextmanager
    def _watched(self) -> Iterator[Callable[[], None]]:
        """Watches over the servers of clusters without a supervisor, and records recoveries.

        Yields the function to call when a step has failed; see `Watch.check_parameter_servers`.
        """
        cluster = self._cluster
        if not isinstance(cluster, choices.Unsupervised):
            yield lambda: None
            return
        assert self.topology is not None
        assert self._give_up is not None
        if self._loss is not None:
            task = Task.named(self._loss.task) or CHIEF
            before_s = max(0.0, time.time() - self._loss.at_s)
            self._recoveries.failed(task, self._loss.cause, step=self._loss.step, attempt=True, before_s=before_s)
        watch = Watch(
            cluster,
            self.topology,
            self.reporter,
            self._recoveries,
            ask=_ask,
            training=self._status,
            give_up=self._give_up,
        )
        watch.start()
        try:
            yield watch.check_parameter_servers
            watch.stop()
            self._recoveries.end(self.pulse.last_step or 0)
        finally:
            watch.stop()
            if self._training is not None:
                self._recoveries.count_repeated(self._training.steps_repeated)
            self.folder.emit("recoveries", rows=self._recoveries.rows)

    def _earlier_loss(self) -> Loss | None:
        """The end of the attempt before this one; recorded in case this one does not train either."""
        earlier = self.folder.earlier
        loss = earlier_loss(earlier, task_files.read(self.folder.root.path, CHIEF))
        if loss is None or earlier is None:
            return None
        self.folder.emit("lost", **asdict(loss))
        is_recorded = earlier.result.get(PENDING_LOSS)
        if earlier.result.get("status") == "running" and not is_recorded:
            action = "resumed from the newest checkpoint"
            self.reporter.emit("failure", step=loss.step, task=loss.task, cause=loss.cause, action=action)
        return loss

    def _status(self) -> TrainingStatus:
        """The current status of the training; never blocks."""
        pulse = self.pulse
        return TrainingStatus(pulse.state, pulse.last_step, pulse.slowest_step_s, pulse.advances)

    def _current_heartbeat(self) -> Heartbeat:
        pulse = self.pulse
        return Heartbeat(
            os.getpid(),
            time.time(),
            pulse.state,
            step=pulse.last_step,
            step_at_s=pulse.step_at_s,
            slowest_step_s=pulse.slowest_step_s,
            advances=pulse.advances,
            progress=None if pulse.progress is None else asdict(pulse.progress),
        )


def _ask(servers: Mapping[Task, str]) -> Mapping[Task, ServerStatus]:
    return statuses(servers, timeout_s=ANSWER_WITHIN_S, incarnation=incarnation)


class Recording:
    """The record of one process of a run.

    Git and the hashes of files work in threads beside the training: both can take seconds, and no step waits for them.

    Args:
      within: the folder whose repository is recorded: the current one of the run.
    """

    def __init__(self, folder: RunFolder, within: Path) -> None:
        self._folder = folder
        self._tree = WorkTree(note=f"git took more than {_GIT_WITHIN_S:g} s", dirty=None)
        self._copies: dict[str, str] = {}
        self._missing: list[str] = []
        self._is_other = False
        self._looking = threading.Thread(target=self._look, args=(within,), name="git", daemon=True)
        self._hashing: threading.Thread | None = None

    def start(self) -> None:
        """Begins to look at the repository."""
        self._looking.start()

    def _look(self, within: Path) -> None:
        # A reproduction runs the code of another run, and not what is in the current folder.
        self._tree = provenance.kept_tree(self._folder.path) or provenance.work_tree(within)

    def begin(self, data_files: Sequence[str]) -> list[str]:
        """Records code and environment, once the user's modules are imported; begins to hash files.

        Returns:
          The files of the user's modules that differ from those of an earlier process of the run.

        Raises:
          RunFolderError: the record cannot be written.
        """
        self._looking.join(_GIT_WITHIN_S)
        earlier = self._folder.stored().get("code") or {}
        changed = self._changed(earlier.get("modules") or {})
        self._is_other = bool(changed or earlier.get("resumed_with_other_code"))
        self._copy_modules()
        with contextlib.suppress(OSError):
            self._write_diff()
        self._record_code()
        self._folder.emit("environment", **provenance.environment())
        self._hashing = threading.Thread(target=self._hash, args=(data_files,), name="hashes", daemon=True)
        self._hashing.start()
        return changed

    def end(self) -> None:
        """Completes the record: modules that the training imported, and hashes. Raises RunFolderError."""
        if self._hashing is None:
            return
        if self._copy_modules():
            self._record_code()
        self._hashing.join(_HASHES_WITHIN_S)

    def _changed(self, earlier: Mapping[str, str]) -> list[str]:
        """The files of imported modules that differ from their copies, from the current folder.

        Args:
          earlier: the copies of an earlier process of the run, by module.
        """
        modules = provenance.user_modules()
        changed = []
        for name, copy in earlier.items():
            if name in modules and self._differs(copy, modules[name]):
                changed.append(str(files.from_here(modules[name])))
        return changed

    def _copy_modules(self) -> bool:
        """Copies the modules that were imported since the last call; returns whether there were any."""
        known = {*self._copies, *self._missing}
        new = {name: file for name, file in provenance.user_modules().items() if name not in known}
        copies, missing = provenance.copy_modules(self._folder.path, new)
        self._copies |= copies
        self._missing += missing
        return bool(new)

    def _differs(self, copy: str, file: Path) -> bool:
        try:
            return (self._folder.path / copy).read_bytes() != file.read_bytes()
        except OSError:
            return False

    def _write_diff(self) -> None:
        diff = self._folder.path / DIFF
        diff.unlink(missing_ok=True)
        if self._tree.diff:
            diff.parent.mkdir(exist_ok=True)
            diff.write_bytes(self._tree.diff)

    def _record_code(self) -> None:
        tree = self._tree
        facts: dict[str, Any] = {
            "commit": tree.commit,
            "branch": tree.branch,
            "dirty": tree.dirty,
            "diff": DIFF if (self._folder.path / DIFF).exists() else None,
            "modules": self._copies,
        }
        notes = [note for note in (tree.note, provenance.not_copied(self._missing)) if note]
        if notes:
            facts["note"] = "; ".join(notes)
        if self._is_other:
            facts["resumed_with_other_code"] = True
        self._folder.emit("code", **facts)

    def _hash(self, names: Sequence[str]) -> None:
        with contextlib.suppress(DataError):  # a file that was removed meanwhile
            known = storage.content_hashes(names)
            if known:  # generated data has none: the seed and the options of `data` define it
                self._folder.emit("hashes", hashes=known)
