"""A sweep in this process: checks, prepares and runs its jobs, collects their results, and ends on a signal."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from psrun import files, process
from psrun.config import choices, groups, parse, schema
from psrun.config.groups import key_of
from psrun.config.run_config import RunConfig, SweepKeys
from psrun.engines.slurm import sweep_jobs
from psrun.engines.slurm.commands import QueuedJob
from psrun.errors import ClusterError, ConfigError, ExitCode, Interrupted, Problem, SweepError
from psrun.launch.child_processes import ForkServer, start_alone
from psrun.results import recorded_config, run_state
from psrun.results.console import warner, wide_unless_terminal
from psrun.results.run_folder import PRUNED, SEARCH_STATES, RunFolder, write_config
from psrun.runs.sweeps import jobs
from psrun.runs.sweeps.sweep import END, KILL, RECORD, TERMINATE, Job, Sweep, cannot_be_written, distinguishing
from psrun.runs.sweeps.sweep_state import SweepState
from psrun.runs.watch.sweep import SweepMonitor
from psrun.tf_internals import modules

_WITHIN_S = 40.0  # a run saves and exits within 25 s, and the remaining tasks of its cluster within 10 s
_KILLED_WITHIN_S = 3.0
_SAYS_AFTER_S = 3.0
_LOOKS_EVERY_S = 0.1
_TO_TRAIN = "to train them, repeat the command of the sweep with train instead of plan"
_SEED = "seed"
_OF_THE_SWEEP = ("sweep.", "hydra", "run.name")  # prefixes of keys that only jobs of a sweep have


@dataclass(frozen=True)
class Proposal:
    """A job that a sweeper proposes: `raw` has plain values, `unresolved` has references."""

    number: int
    overrides: list[str]
    folder: Path
    raw: dict[str, Any]
    unresolved: Any


class SweepSignal(BaseException):
    """A signal ended the sweep and its jobs. Not an Exception: launchers and sweepers attribute exceptions to a job."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class SignalHandler:
    """The first signal stops running jobs after a save and raises SweepSignal; the second ends all immediately."""

    def __init__(self, sweep: Sweep, show: Callable[[str], None]) -> None:
        self._sweep = sweep
        self._show = show
        self._signum: int | None = None

    def install(self) -> None:
        process.on_signals(self._handle)

    def raise_again(self) -> None:
        """Raises SweepSignal again, for launchers that swallow it."""
        if self._signum is not None:
            raise SweepSignal(self._signum)

    def _handle(self, signum: int, frame: Any) -> None:
        if self._signum is not None:
            if signum == signal.SIGHUP:  # a shell repeats it
                return
            self._sweep.request_end(KILL)
            self._cancel(running=True)
            self._wait(_KILLED_WITHIN_S)
            os._exit(Interrupted(signum).exit_code)
        self._signum = signum
        self._sweep.request_end(END if signum == signal.SIGINT else TERMINATE)  # their exit code is the sweep's
        self._show(f"{signal.Signals(signum).name}: running jobs save and exit; repeat to exit immediately")
        self._cancel(running=False)
        self._wait(_WITHIN_S)
        left = self._on_slurm()
        if left:
            self._show(f"Slurm still has jobs of the sweep; to cancel them: scancel {' '.join(job.id for job in left)}")
        raise SweepSignal(signum)

    def _cancel(self, *, running: bool) -> None:
        """Cancels jobs of the sweep that Slurm has. Others, and those that run, see the request to end."""
        try:
            sweep_jobs.cancel(self._sweep.path, running=running)
        except ClusterError as error:
            self._show(str(error))

    def _on_slurm(self) -> list[QueuedJob]:
        try:
            return sweep_jobs.queued(self._sweep.path)
        except ClusterError:
            return []

    def _wait(self, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while (self._sweep.has_running_jobs() or self._on_slurm()) and time.monotonic() < deadline_s:
            time.sleep(0.1)


class SweepRunner:
    """A sweep of this process.

    Args:
      arguments: its command line, in Hydra's grammar.
      before: the sweep to resume; None for a new one.

    Attributes:
      plans: whether its jobs are planned instead of run.
      resources: what is closed when the sweep has ended.
    """

    def __init__(self, arguments: list[str], before: Sweep | None) -> None:
        self._arguments = arguments
        self._before = before
        self._console = wide_unless_terminal(Console(highlight=False))
        self._sweep: Sweep | None = None
        self._limit: int | str = "auto"
        self._forks: ForkServer | None = None
        self._forked = set[Path]()  # folders of jobs whose process imports TensorFlow
        self._shown = False
        self._conclusion = ""
        self._winner: Sequence[str] | None = None  # the arguments of a run with the best configuration
        self._undo: Callable[[], None] = lambda: None
        self.plans = False
        self.resources = contextlib.ExitStack()

    # -- start

    def has_nothing_to_do(self) -> bool:
        """Whether all jobs of a resumed sweep are done; prints a message if so."""
        before = self._before
        if before is None or before.status != "completed":
            return False
        if not all(job.status == PRUNED or before.is_done(before.folder(job)) for job in before.jobs.values()):
            return False
        if before.holds_plans:
            self._print(f"the jobs of the sweep in {before.path} are planned, not trained; {_TO_TRAIN}")
            return True
        SweepMonitor(before, self._console).result()
        self._print(f"all jobs of the sweep in {before.path} are done; nothing to do")
        return True

    def begin(self, folder: Path, *, keys: Mapping[str, Any]) -> SweepKeys:
        """Creates the folder of the sweep; returns `keys`, of the node `sweep`.

        Raises:
          ConfigError: `keys` of the node `sweep` are invalid, or the folder belongs to another sweep.
          SweepError: the folder cannot be written.
        """
        problems: list[Problem] = []
        options = schema.read(SweepKeys, keys, key="sweep", problems=problems)
        if problems or options is None:
            raise ConfigError(problems)
        self._limit = options.max_parallel
        sweep = self._before or Sweep(folder, self._arguments, options.search, options.metric, options.mode)
        if self._before is not None:
            self._undo = RunFolder(sweep.path).snapshot([RECORD])
        sweep.rank_by(options.metric, options.mode)
        sweep.begin(again=self._before is not None)
        self._sweep = sweep
        process.outlive_stdout(sys.stderr)
        self._monitor = SweepMonitor(sweep, self._console)
        self._signals = SignalHandler(sweep, self._monitor.print)
        return options

    @property
    def sweep(self) -> Sweep:
        """The sweep. Raises SweepError before it has started."""
        if self._sweep is None:
            raise SweepError("the sweep has not started")
        return self._sweep

    @property
    def has_begun(self) -> bool:
        return self._sweep is not None

    def warn(self, text: str) -> None:
        warner(self._console)(text)

    # -- jobs

    def prepare(self, proposals: Sequence[Proposal]) -> None:
        """Checks all proposed jobs, then creates their folders.

        Raises:
          ConfigError: with all problems of all jobs.
          SweepError: the folder cannot be written.
        """
        self._signals.raise_again()
        sweep = self.sweep
        self._require_own_folders(proposals)
        for each in proposals:
            self._wait_for_others(each)
        remaining = [each for each in proposals if not self._is_done(each)]
        raws = {each.number: self._raw(each) for each in remaining}
        runs = self._checked(remaining, raws)
        self._forked |= {each.folder for each in remaining if each.number in runs and _imports(runs[each.number])}
        self.plans = bool(remaining) and all(raw["mode"] == "plan" for raw in raws.values())
        if not self._shown:
            auto = jobs.jobs_at_once(list(runs.values()))
            sweep.max_parallel = self._limit if isinstance(self._limit, int) else auto
        planned = {
            each.number: Job(each.number, each.overrides, str(each.folder.relative_to(sweep.path)))
            for each in proposals
        }
        sweep.plan(planned)
        try:
            for each in remaining:
                if not jobs.can_resume(each.raw, each.folder) and RunFolder(each.folder).has_run:
                    shutil.rmtree(each.folder)
                each.folder.mkdir(parents=True, exist_ok=True)
                run = runs.get(each.number)
                write_config(each.folder, raws[each.number] if run is None else run.raw)
        except OSError as error:
            raise cannot_be_written(sweep.path, error) from error
        if not self._shown:
            self._signals.install()
            if not self.plans:
                self._monitor.start()
            self._shown = True

    def _wait_for_others(self, each: Proposal) -> None:
        """Waits while another process has the job, such as that of a person who resumes a paused one."""
        began_s = time.monotonic()
        says = True
        with contextlib.suppress(OSError):  # a file system without locks, or no folder yet
            while files.is_locked(each.folder):
                if says and time.monotonic() - began_s > _SAYS_AFTER_S:  # a killed sweep's jobs end sooner
                    says = False
                    self._print(f"job {each.number} waits for another process that runs it in {each.folder}")
                self._signals.raise_again()
                time.sleep(_LOOKS_EVERY_S)

    def start_fork_server(self) -> None:
        """Starts the fork server of the jobs if several of them are to be forked.

        In the main thread: the kernel ends a process with the thread that has started it.
        """
        if self._forks is None and self._forked and (len(self._forked) > 1 or self.sweep.search is not None):
            self._forks = ForkServer(self.sweep.path / "fork-server.log")
        if self._forks is not None:
            self._forks.begin()

    def close(self) -> None:
        """Ends the fork server, and closes the resources."""
        self.resources.close()
        if self._forks is not None:
            self._forks.close()
        modules.remove_abandoned_folders()

    def run(self, folder: Path) -> float | None:
        """Runs the job in `folder`, as `jobs.run` does. The sweep ends if the job shows that its metric is mistyped."""
        start_process = self._forks.start if self._forks is not None and folder in self._forked else start_alone
        value = jobs.run(folder, self.sweep, elsewhere=False, start_process=start_process)
        metric = self.sweep.metric
        run = RunFolder(folder)
        result = run.stored()
        metrics = result.get("metrics") or {}  # jobs without evaluation have none
        is_mistyped = metric is not None and metric not in metrics and schema.is_near(metric, metrics)
        if value is None and is_mistyped and (result.get("status") == "completed" or run.is_paused):
            self.sweep.request_end(END)
        return value

    def plan(self) -> None:
        """Plans the jobs instead. Raises SweepError."""
        number = len(self.sweep.jobs)
        doing = "planning 1 job" if number == 1 else f"planning {number} jobs"
        if not self._console.is_terminal:  # which shows no status
            self._print(doing)
        with self._console.status(doing):
            jobs.plan(self.sweep)

    def look(self) -> None:
        """Reads and shows the state of the jobs. Raises ConfigError if a search would run without its objective."""
        self._signals.raise_again()
        self._monitor.look()
        if self.sweep.search is not None:
            self._require_metric(is_over=False)

    def _require_own_folders(self, proposals: Sequence[Proposal]) -> None:
        """Raises ConfigError if two jobs have the same folder."""
        owners = {self.sweep.folder(job): number for number, job in self.sweep.jobs.items()}
        for each in proposals:
            other = owners.setdefault(each.folder, each.number)
            if other != each.number:
                message = f"is {each.folder} for jobs {other} and {each.number}; give each job its own folder"
                raise ConfigError([Problem("hydra.sweep.subdir", message)])

    def _is_done(self, each: Proposal) -> bool:
        """Whether the job must not run again. Raises ConfigError if its folder holds another job."""
        sweep = self.sweep
        stored = RunFolder(each.folder).stored()
        there = stored.get("overrides")
        if there is not None and _of_job(there) != _of_job(each.overrides):
            message = f"holds a job with {' '.join(there)}, but the sweep now wants {' '.join(each.overrides)}"
            raise ConfigError(
                [Problem("resume", f"{each.folder} {message}; what the sweep was started with has changed")]
            )
        before = sweep.jobs.get(each.number)
        if before is not None and before.status == "completed" and not stored:
            self._print(f"job {each.number} was completed, but {each.folder} is missing: running it again")
        return sweep.is_done(each.folder)

    def _raw(self, each: Proposal) -> dict[str, Any]:
        """The configuration of the job: as it was first prepared, unless the job failed and starts again."""
        resumes = jobs.can_resume(each.raw, each.folder)
        if (
            not resumes and RunFolder(each.folder).stored().get("status") == "failed"
        ):  # the mistake may be corrected now
            return each.raw
        recorded = recorded_config.as_recorded(each.raw, each.unresolved, each.folder, set())
        return {**recorded, "resume": str(each.folder)} if resumes else recorded

    def _checked(self, proposals: Sequence[Proposal], raws: Mapping[int, Mapping[str, Any]]) -> dict[int, RunConfig]:
        """The runs of the jobs by number, without invalid proposals of a search. Raises ConfigError."""
        runs = dict[int, RunConfig]()
        by_problem = dict[Problem, list[int]]()
        for each in proposals:
            try:
                runs[each.number] = _require_whole(parse.load(raws[each.number]))
            except ConfigError as error:
                for problem in error.problems:
                    by_problem.setdefault(problem, []).append(each.number)
        # A later proposal of a search may be invalid: its job fails, and the others continue.
        goes_on = self.sweep.search not in (None, "grid") and bool(self.sweep.jobs)
        if by_problem and not goes_on:
            differing = distinguishing([each.overrides for each in proposals])
            apart = {each.number: " ".join(own) for each, own in zip(proposals, differing)}
            raise ConfigError([_of_jobs(problem, numbers, apart) for problem, numbers in by_problem.items()])
        return runs

    # -- end

    def conclude(self, text: str, winner: Sequence[str]) -> None:
        """Prints a line below the results of the jobs, and the command of a run with the best configuration.

        Args:
          winner: the arguments of that run.
        """
        self._conclusion = text
        self._winner = winner

    def abandon(self) -> None:
        """Ends a sweep that cannot start or continue."""
        if self._sweep is None:
            return
        if self._shown:
            self._monitor.stop()
            self._monitor.result()
        if self._before is None and not self._sweep.jobs:
            self._sweep.discard()
        else:
            self._sweep.end("failed")
        if not self._shown:  # what cannot be resumed in this way can still be resumed in another one
            self._undo()

    def end(self, signum: int | None) -> ExitCode:
        """Shows the results of the jobs.

        Args:
          signum: the signal that ended the sweep; None without one.

        Raises:
          ConfigError: no job has the metric that ranks them, or jobs cannot be planned.
          SweepError: the folder of the sweep cannot be written.
        """
        sweep = self.sweep
        state = None
        if self.plans:
            self._monitor.update()
        else:
            self._monitor.stop()
            state = self._monitor.result()
        if self._conclusion:
            self._print(self._conclusion)
        final = ("completed", PRUNED)
        codes = {job.exit_code or ExitCode.FAILED for job in sweep.jobs.values() if job.status not in final}
        succeeded = not codes or (sweep.search is not None and signum is None)
        sweep.end("interrupted" if signum is not None else "completed" if succeeded else "failed")
        if not succeeded and not self.plans:
            self._print(f"to resume the other jobs: {run_state.resume_command(sweep.path)}")
        if signum is not None:
            return Interrupted(signum).exit_code
        if self.plans:
            self._show_plans()
        else:
            self._require_metric(is_over=True)
        if succeeded and state is not None:
            self._show_next_command(state)
        return ExitCode.USAGE if codes == {ExitCode.USAGE} else ExitCode.FAILED if codes else ExitCode.DONE

    def _show_next_command(self, state: SweepState) -> None:
        """Prints how to see the spread of a sweep over seeds, to use the best job, and to train it again."""
        best = state.best
        if best is None:
            return
        varied = {key_of(each) for each in best.differing}
        if _SEED in varied or not varied:
            folder = shlex.quote(run_state.shown_path(self.sweep.path))
            what = "the means over seeds" if varied > {_SEED} else "the spread"
            self._print(f"to see {what}: psrun report {folder}")
        if varied <= {_SEED}:
            return
        options, _ = groups.split_arguments(groups.arguments_of_the_configuration(self._arguments))
        chosen = []
        for each in self._winner or best.overrides:
            if not key_of(each).startswith(_OF_THE_SWEEP):
                chosen.append(each)
        if self._winner is None:  # a search compares means: the best job may have another configuration
            job = shlex.quote(run_state.shown_path(self.sweep.path / best.folder))
            self._print(f"to use the best: psrun predict {job}, psrun export {job}")
        self._print(f"to train the best again: {shlex.join(['psrun', *options, *chosen])}")

    def _show_plans(self) -> None:
        """Shows the plans; removes their folder unless the command line names it."""
        has_folder = any(key_of(argument) == "hydra.sweep.dir" for argument in self._arguments)
        try:
            jobs.show_plans(self.sweep, self._console)
        finally:
            if self._before is None and not has_folder:
                files.remove_tree(self.sweep.path)

    def _require_metric(self, *, is_over: bool) -> None:
        """Raises ConfigError if jobs were measured, but none by the metric of the sweep."""
        sweep = self.sweep
        measured = [job for job in sweep.jobs.values() if job.status in ("completed", *SEARCH_STATES)]
        if sweep.metric is None or not measured:
            return
        there: dict[str, Any] = {}
        for job in measured:
            there |= RunFolder(sweep.folder(job)).stored().get("metrics") or {}
            if there.get(sweep.metric) is not None:
                return
        if sweep.metric in there and not is_over:  # later ones may have a value
            return
        if sweep.metric in there:
            message = f"'{sweep.metric}' is undefined (null) in every job; the logs of the jobs say why"
            raise ConfigError([Problem("sweep.metric", message)])
        guess = schema.did_you_mean(sweep.metric, there)
        remedy = "" if sweep.search else " Resume the sweep with the right name."
        raise ConfigError([Problem("sweep.metric", f"no job has a metric '{sweep.metric}'.{guess}{remedy}")])

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)


def _of_job(overrides: Sequence[str]) -> list[str]:
    """The overrides that configure a job, sorted, without those that configure the sweep."""
    return sorted(each for each in overrides if not key_of(each).startswith("sweep."))


def _imports(run: RunConfig) -> bool:
    """Whether the process of a job imports TensorFlow itself, and may be forked. Others start tasks that do."""
    return run.cluster.fork_server and not isinstance(run.cluster, choices.Supervised)


def _require_whole(run: RunConfig) -> RunConfig:
    """The run. Raises ConfigError if a single process cannot start all of its tasks."""
    if run.uses_cluster and not run.cluster.fits_in_sweep:
        message = (
            f"is {run.cluster.kind}, whose tasks are started separately, but a sweep starts whole runs; choose "
            "inprocess, local or ray, with hydra/launcher=submitit_slurm for Slurm jobs"
        )
        raise ConfigError([Problem("cluster", message)])
    return run


def _of_jobs(problem: Problem, numbers: list[int], apart: Mapping[int, str]) -> Problem:
    """The problem, with the jobs that have it unless all do."""
    if len(numbers) == len(apart):
        return problem
    listed = ", ".join(f"{number} ({apart[number]})" for number in numbers[:3])
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    return Problem(problem.key, f"{problem.message} [job {listed}{more}]")
