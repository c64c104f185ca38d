"""A sweep in this process: validates, prepares and runs its jobs, and collects their results."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from psrun import files, process
from psrun.config import choices, parse, schema
from psrun.config.run_config import RunConfig, SweepKeys
from psrun.errors import ConfigError, ExitCode, Interrupted, Problem, SweepError
from psrun.launch.child_processes import ForkServer, start_alone
from psrun.launch.sweeps import capacity, checks, jobs, plans
from psrun.launch.sweeps.checks import Proposed
from psrun.launch.sweeps.interruption import Interruption
from psrun.launch.sweeps.monitor import Monitor
from psrun.results import recorded_config
from psrun.results.run_folder import RESULT, RunFolder, write_config
from psrun.results.sweep_record import END, Job, Sweep, cannot_be_written
from psrun.results.sweep_state import distinguishing


class Running:
    """A sweep of this process.

    Args:
      arguments: its command line, in Hydra's grammar.
      before: the sweep to resume; None for a new one.

    Attributes:
      plans: whether its jobs are planned instead of run.
    """

    def __init__(self, arguments: list[str], before: Sweep | None) -> None:
        self._arguments, self._before = arguments, before
        self._console = Console(highlight=False)
        self._sweep: Sweep | None = None
        self._limit: int | str = "auto"
        self._forks: ForkServer | None = None
        self._forked = set[Path]()  # folders of jobs whose process imports TensorFlow
        self._shown = self.plans = False

    # -- start

    def has_nothing_to_do(self) -> bool:
        """Whether all jobs of a resumed sweep are done; prints a message if so."""
        before = self._before
        if before is None or before.status != "completed":
            return False
        if not all(before.is_done(before.folder(job)) for job in before.jobs.values()):
            return False
        Monitor(before, self._console).result()
        self._print(f"all jobs of the sweep in {before.path} are done; nothing to do")
        return True

    def begin(self, folder: Path, *, search: bool, keys: Mapping[str, Any]) -> None:
        """Creates the folder of the sweep.

        Raises:
          ConfigError: `keys` of the node `sweep` are invalid, or the folder belongs to another sweep.
          SweepError: the folder cannot be written.
        """
        problems: list[Problem] = []
        options = schema.read(SweepKeys, keys, key="sweep", problems=problems)
        if search and not keys.get("metric"):
            message = "a search requires an objective: sweep.metric=val_auc sweep.mode=max"
            problems.append(Problem("sweep.metric", message))
        if problems or options is None:
            raise ConfigError(problems)
        self._limit = options.max_parallel
        sweep = self._before or Sweep(folder, self._arguments, search, options.metric, options.mode)
        sweep.rank_by(options.metric, options.mode)
        sweep.begin(again=self._before is not None)
        self._sweep = sweep
        process.outlive_stdout(sys.stderr)
        self._monitor = Monitor(sweep, self._console)
        self._interruption = Interruption(sweep, self._monitor.print)

    def add(self, arguments: list[str]) -> None:
        """Adds arguments that a resumed sweep needs."""
        self.sweep.arguments = [*self.sweep.arguments, *arguments]
        self.sweep.write()

    @property
    def sweep(self) -> Sweep:
        """The sweep. Raises SweepError before it has started."""
        if self._sweep is None:
            raise SweepError("the sweep has not started")
        return self._sweep

    @property
    def has_begun(self) -> bool:
        return self._sweep is not None

    # -- jobs

    def prepare(self, proposed: Sequence[Proposed]) -> None:
        """Checks all proposed jobs, then creates their folders.

        Raises:
          ConfigError: with all problems of all jobs.
          SweepError: the folder cannot be written.
        """
        self._interruption.raise_if_ended()
        sweep = self.sweep
        checks.require_own_folders(sweep, proposed)
        remaining = [each for each in proposed if not self._is_done(each)]
        raws = {each.number: self._raw(each) for each in remaining}
        runs = self._checked(remaining, raws)
        self._forked = {each.folder for each in remaining if each.number in runs and _imports(runs[each.number])}
        self.plans = bool(remaining) and all(raw["mode"] == "plan" for raw in raws.values())
        if not self._shown:
            auto = capacity.jobs_at_once(list(runs.values()))
            sweep.max_parallel = self._limit if isinstance(self._limit, int) else auto
        try:
            for each in remaining:
                self._make(each, raws[each.number])
        except OSError as error:
            raise cannot_be_written(sweep.path, error) from error
        at = {each.number: str(each.folder.relative_to(sweep.path)) for each in proposed}
        sweep.plan([Job(each.number, each.overrides, at[each.number]) for each in proposed])
        if not self._shown:
            self._interruption.install()
            if not self.plans:
                self._monitor.start()
            self._shown = True

    def start_fork_server(self) -> None:
        """Starts the fork server of the jobs if several of them are to be forked.

        In the main thread: the kernel ends a process with the thread that has started it.
        """
        if self._forks is None and self._forked and (len(self._forked) > 1 or self.sweep.search):
            self._forks = ForkServer(self.sweep.path / "fork-server.log")
        if self._forks is not None:
            self._forks.begin()

    def close(self) -> None:
        """Ends the fork server."""
        if self._forks is not None:
            self._forks.close()

    def run(self, folder: Path) -> float | None:
        """Runs the job in `folder`, as `jobs.run` does. The sweep ends if the job shows that its metric is mistyped."""
        start_process = self._forks.start if self._forks is not None and folder in self._forked else start_alone
        value = jobs.run(folder, self.sweep, elsewhere=False, start_process=start_process)
        if value is None and self.sweep.metric is not None and self._is_mistyped(self.sweep.metric, folder):
            self.sweep.tell_to_end(END)
        return value

    def _is_mistyped(self, metric: str, folder: Path) -> bool:
        """Whether the completed job in `folder` has a metric of nearly that name; jobs without evaluation have none."""
        result = RunFolder(folder).stored()
        metrics = result.get("metrics") or {}
        return result.get("status") == "completed" and metric not in metrics and schema.is_near(metric, metrics)

    def plan(self) -> None:
        """Plans the jobs instead. Raises SweepError."""
        with self._console.status("planning"):
            plans.make(self.sweep)

    def look(self) -> None:
        """Reads and shows the current state of the jobs.

        Raises:
          ConfigError: a search would run without its objective.
        """
        self._interruption.raise_if_ended()
        self._monitor.look()
        if self.sweep.search:
            self._require_metric()

    def _is_done(self, each: Proposed) -> bool:
        """Whether the job must not run again. Raises ConfigError if its folder holds another job."""
        sweep, stored = self.sweep, RunFolder(each.folder).stored()
        there = stored.get("overrides")
        if there is not None and checks.without_sweep_keys(there) != checks.without_sweep_keys(each.overrides):
            message = f"holds a job with {' '.join(there)}, but the sweep now wants {' '.join(each.overrides)}"
            raise ConfigError(
                [Problem("resume", f"{each.folder} {message}; what the sweep was started with has changed")]
            )
        before = sweep.jobs.get(each.number)
        if before is not None and before.status == "completed" and not stored:
            self._print(f"job {each.number} was completed, but {each.folder} is missing: running it again")
        return sweep.is_done(each.folder)

    def _raw(self, each: Proposed) -> dict[str, Any]:
        """The configuration of the job: as it was first prepared, unless the job failed and starts again."""
        if jobs.can_resume(each.raw, each.folder):
            return {
                **recorded_config.as_recorded(each.raw, each.unresolved, each.folder, []),
                "resume": str(each.folder),
            }
        if RunFolder(each.folder).stored().get("status") == "failed":  # perhaps with a mistake that is corrected now
            return each.raw
        return recorded_config.as_recorded(each.raw, each.unresolved, each.folder, [])

    def _checked(self, proposed: Sequence[Proposed], raws: Mapping[int, Mapping[str, Any]]) -> dict[int, RunConfig]:
        """The runs of the jobs by number, without invalid proposals of a search. Raises ConfigError."""
        runs = dict[int, RunConfig]()
        by_problem = dict[Problem, list[int]]()
        for each in proposed:
            try:
                runs[each.number] = checks.require_whole(parse.load(raws[each.number]))
            except ConfigError as error:
                for problem in error.problems:
                    by_problem.setdefault(problem, []).append(each.number)
        # A later proposal of a search may be invalid: its job fails, and the others continue.
        if by_problem and (not self.sweep.search or not runs):
            apart = dict(zip([e.number for e in proposed], distinguishing([e.overrides for e in proposed])))
            raise ConfigError([checks.of_jobs(problem, numbers, apart) for problem, numbers in by_problem.items()])
        return runs

    def _make(self, each: Proposed, raw: Mapping[str, Any]) -> None:
        if not jobs.can_resume(each.raw, each.folder) and (each.folder / RESULT).exists():
            shutil.rmtree(each.folder)
        each.folder.mkdir(parents=True, exist_ok=True)
        write_config(each.folder, raw)

    # -- end

    def is_fruitless(self) -> bool:
        """Whether it is a search whose jobs all failed."""
        sweep = self._sweep
        if sweep is None:
            return False
        self._monitor.update()
        return sweep.search and bool(sweep.jobs) and all(job.status == "failed" for job in sweep.jobs.values())

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

    def end(self, signum: int | None) -> ExitCode:
        """Shows the results of the jobs.

        Args:
          signum: the signal that ended the sweep; None without one.

        Raises:
          ConfigError: no job has the metric that ranks them, or jobs cannot be planned.
          SweepError: the folder of the sweep cannot be written.
        """
        sweep, codes = self.sweep, set[int]()
        if self.plans:
            self._monitor.update()
        else:
            self._monitor.stop()
            self._monitor.result()
        for job in sweep.jobs.values():
            if job.status != "completed":
                codes.add(job.exit_code or ExitCode.FAILED)
        succeeded = not codes or (sweep.search and signum is None)
        sweep.end("interrupted" if signum is not None else "completed" if succeeded else "failed")
        if not succeeded and not self.plans:
            self._print(f"to resume the other jobs: psrun -m resume={recorded_config.quoted(sweep.path)}")
        if signum is not None:
            return Interrupted(signum).exit_code
        if self.plans:
            self._show_plans()
        else:
            self._require_metric()
        return ExitCode.USAGE if codes == {ExitCode.USAGE} else ExitCode.FAILED if codes else ExitCode.DONE

    def _show_plans(self) -> None:
        """Shows the plans; removes their folder unless the command line names it."""
        has_folder = any(recorded_config.key_of(argument) == "hydra.sweep.dir" for argument in self._arguments)
        try:
            plans.show(self.sweep, self._console)
        finally:
            if self._before is None and not has_folder:
                files.remove_tree(self.sweep.path)

    def _require_metric(self) -> None:
        sweep = self.sweep
        completed = [job for job in sweep.jobs.values() if job.status == "completed"]
        if sweep.metric is None or not completed or any(job.metric is not None for job in completed):
            return
        there = RunFolder(sweep.folder(completed[0])).stored().get("metrics") or {}
        guess = schema.did_you_mean(sweep.metric, there)
        remedy = "" if sweep.search else " Resume the sweep with the right name."
        raise ConfigError([Problem("sweep.metric", f"no job has a metric '{sweep.metric}'.{guess}{remedy}")])

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)


def _imports(run: RunConfig) -> bool:
    """Whether the process of a job imports TensorFlow itself, and may be forked. Others start tasks that do."""
    return run.cluster.fork_server and not isinstance(run.cluster, choices.Supervised)
