"""`psrun -m sweep.search=METHOD`: its parameters in Hydra's sweep syntax, and the loop that runs its jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from psrun.config import composition
from psrun.config.run_config import SweepKeys
from psrun.errors import ConfigError, Problem
from psrun.results.run_folder import SEARCH_STATES, RunFolder
from psrun.runs.sweeps import proposals, search
from psrun.runs.sweeps.proposals import OptunaProposals, Parameter
from psrun.runs.sweeps.runner import SweepRunner
from psrun.runs.sweeps.search import Part, Search
from psrun.runs.sweeps.sweep import END, Job

_REPLICATES = "seed"
_MOST_AT_ONCE = 512
_LOOKS_EVERY_S = 0.5


class Launcher(Protocol):
    """What runs the jobs of a search."""

    def check(self, jobs: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Checks and prepares jobs, as numbers and arguments, all before the first one starts."""

    def start(self, number: int, given: Sequence[str], *, pause_epoch: int | None, pool: ThreadPoolExecutor) -> Future:
        """Starts a job, or continues it; the future ends with it."""


@dataclass(frozen=True)
class Space:
    """What the arguments of a search vary.

    Attributes:
      fixed: the arguments that all jobs have.
      of_sweep: those with keys of `sweep`, which no job has: a person may evaluate or export it by itself.
      replicates: the arguments of which each configuration has one job; [None] without any.
    """

    fixed: tuple[str, ...]
    of_sweep: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    replicates: tuple[str | None, ...]

    @classmethod
    def of(cls, arguments: Sequence[str], method: str, loader: ConfigLoader | None) -> Space:
        """The space of arguments in Hydra's sweep syntax."""
        fixed: list[str] = []
        of_sweep: list[str] = []
        parameters = []
        replicates: list[str | None] = [None]
        for each in composition.parsed_overrides(arguments, loader):
            key = each.get_key_element()
            if each.key_or_group == _REPLICATES and each.is_discrete_sweep():
                replicates = [f"{key}={value}" for value in _listed(each)]
            elif each.is_sweep_override():
                parameters.append(_parameter(each, key, method))
            else:
                (of_sweep if each.key_or_group.startswith("sweep.") else fixed).append(str(each.input_line))
        return cls(tuple(fixed), tuple(of_sweep), tuple(parameters), tuple(replicates))

    def job(self, configuration: Sequence[str], replicate: int) -> list[str]:
        """The arguments of a job."""
        own = self.replicates[replicate]
        return [*self.fixed, *configuration, *([] if own is None else [own])]

    def explained(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems of examples: one for each range, with what to write for integers."""
        ranges = {each.key.lstrip("+"): each for each in self.parameters if each.listed is None}
        found: dict[Problem, None] = {}
        seen: set[str] = set()
        for problem in problems:
            if problem.key not in ranges:
                found[problem] = None
            elif problem.key not in seen:
                seen.add(problem.key)
                found[Problem(problem.key, f"{problem.message}{_hint(ranges[problem.key])}")] = None
        return [*found]

    def examples(self, most: int = 20) -> Iterator[list[str]]:
        """The arguments of some jobs, with those of the sweep: each sample is in one of them, up to `most`."""
        first = {each.key: each.samples[0] for each in self.parameters}
        others = [(each.key, value) for each in self.parameters for value in each.samples[1:]]
        for changed in [{}, *({key: value} for key, value in others[: most - 1])]:
            configuration = [f"{key}={value}" for key, value in {**first, **changed}.items()]
            yield [*self.of_sweep, *self.job(configuration, 0)]


def _hint(fractions: Parameter) -> str:
    """What to write for integers instead of a range of fractions; empty if its ends are none."""
    low = fractions.low
    high = fractions.high
    if not (float(low).is_integer() and float(high).is_integer()):
        return ""
    integers = f"int(interval({low:g},{high:g}))"
    return f"; the integers of the range are {f'tag(log,{integers})' if fractions.is_log else integers}"


def _parameter(override: Override, key: str, method: str) -> Parameter:
    value: Any = override.value()
    is_log = "log" in getattr(value, "tags", ())
    if isinstance(value, IntervalSweep):
        is_integer = isinstance(value.start, int) and isinstance(value.end, int)
        return Parameter(key, low=value.start or 0, high=value.end or 0, is_integer=is_integer, is_log=is_log)
    numbers = [*value.range()] if isinstance(value, RangeSweep) and method != "grid" else []
    is_integer = all(isinstance(number, int) for number in numbers)
    if numbers and (not is_log or (is_integer and abs(value.step) == 1)):  # Optuna's logarithmic ranges have no steps
        step = abs(value.step)
        return Parameter(key, low=min(numbers), high=max(numbers), step=step, is_integer=is_integer, is_log=is_log)
    return Parameter(key, _listed(override))


def _listed(override: Override) -> tuple[str, ...]:
    """The values of a parameter, each once, in an order that a resumed search finds again."""
    value: Any = override.value()
    value.shuffle = False
    return tuple(dict.fromkeys(override.sweep_string_iterator()))


class SearchLoop:
    """The jobs of a search in this process.

    Args:
      epochs: of a whole training; None if that is not known, as without halving.
      seed: of the proposals.

    Raises:
      ConfigError: there is no epoch to pause after, or Optuna is not installed.
    """

    def __init__(
        self, running: SweepRunner, launcher: Launcher, space: Space, keys: SweepKeys, *, epochs: int | None, seed: int
    ) -> None:
        method = keys.search
        assert method is not None
        self._running = running
        self._launcher = launcher
        self._space = space
        jobs = running.sweep.jobs
        total = min(keys.num_trials or math.inf, proposals.num_combinations(space.parameters))
        total = max(total, len({number // len(space.replicates) for number in jobs}))  # there were more before
        self._rungs: list[int | None] = [None]
        if keys.halving.factor is not None and epochs is not None:
            paused_at = [int(epoch) for job in jobs.values() for epoch in job.rungs]
            self._rungs = _rungs(keys, epochs, int(total), first=min(paused_at, default=1))
        maximize = keys.mode == "max"
        self._proposals = OptunaProposals(running.sweep.path, method, space.parameters, maximize=maximize, seed=seed)
        self._search = Search(
            self._proposals,
            num_configurations=int(total),
            num_replicates=len(space.replicates),
            num_rungs=len(self._rungs),
            factor=keys.halving.factor or 1,
            maximize=maximize,
            waits=method not in proposals.ADAPTIVE,
        )
        self._maximize = maximize
        self._is_grid = method == "grid"

    def run(self) -> None:
        """Runs the search to its end, or until the sweep is asked to end."""
        self._restore()
        if self._is_grid:
            self._check_all()
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            try:
                self._run(pool)
            except BaseException:
                self._running.sweep.request_end(END)  # leaving the pool waits for its jobs
                raise
        if self._running.sweep.end_request() is None:
            self._end()

    def _run(self, pool: ThreadPoolExecutor) -> None:
        futures: dict[Future, Part] = {}
        while True:
            self._start(futures, pool)
            if not futures:
                return
            done, _ = wait(futures, timeout=_LOOKS_EVERY_S, return_when=FIRST_COMPLETED)
            ended = [futures.pop(future) for future in done]
            for future in done:
                future.result()
            if done:
                self._running.look()  # before Optuna learns of a job without the metric that it has failed
            for part in ended:
                if self._running.sweep.end_request() is None:
                    self._ended(part)

    def _start(self, futures: dict[Future, Part], pool: ThreadPoolExecutor) -> None:
        """Starts as many parts as fit."""
        sweep = self._running.sweep
        # How many fit is known once the first job is prepared.
        while sweep.end_request() is None and (not futures or len(futures) < sweep.max_parallel):
            part = self._search.next()
            if part is None:
                return
            number = self._number(part)
            pause_epoch = self._rungs[part.rung] if part.rung < len(self._rungs) - 1 else None
            futures[self._launcher.start(number, self._given(part), pause_epoch=pause_epoch, pool=pool)] = part

    def _ended(self, part: Part) -> None:
        sweep = self._running.sweep
        number = self._number(part)
        folder = sweep.folder(sweep.jobs[number])
        value = sweep.value(folder)
        epoch = self._rungs[part.rung]
        is_paused = RunFolder(folder).is_paused  # else a person has trained it to the end
        if value is not None and epoch is not None and is_paused:
            sweep.reached(number, epoch, value)
        self._search.ended(part, value)

    def _end(self) -> None:
        """Records that what is paused does not go on, and prints the best configuration."""
        sweep = self._running.sweep
        self._proposals.prune(self._search.paused)
        sweep.prune()  # also jobs whose configuration has failed with another seed
        means = self._search.means()
        if not means:
            return
        best = (max if self._maximize else min)(means, key=lambda number: means[number])
        jobs = ", ".join(str(job.number) for job in self._jobs(best))
        replicates = len(self._space.replicates)
        mean = f", the mean of {replicates} seeds" if replicates > 1 else ""
        configuration = self._proposals.overrides(best)
        what = " ".join(configuration)
        text = f"best configuration: {what}  ({sweep.metric} {means[best]:.5g}{mean}; job {jobs})"
        winner = [*self._space.fixed, *configuration]
        if replicates == 1:
            winner = self._space.job(configuration, 0)
        self._running.conclude(text, winner)

    # -- jobs

    def _number(self, part: Part) -> int:
        return part.configuration * len(self._space.replicates) + part.replicate

    def _given(self, part: Part) -> list[str]:
        return self._space.job(self._proposals.overrides(part.configuration), part.replicate)

    def _jobs(self, configuration: int) -> Iterator[Job]:
        """The jobs of a configuration that are known."""
        for replicate in range(len(self._space.replicates)):
            number = self._number(Part(configuration, replicate, 0))
            if number in self._running.sweep.jobs:
                yield self._running.sweep.jobs[number]

    def _check_all(self) -> None:
        """Prepares all jobs of a grid, as of a sweep without a search: one with a mistake is found at the start."""
        known = self._running.sweep.jobs
        jobs = []
        for configuration, combination in enumerate(self._proposals.all_overrides()):
            for replicate in range(len(self._space.replicates)):
                number = self._number(Part(configuration, replicate, 0))
                if number not in known:
                    jobs.append((number, self._space.job(combination, replicate)))
        if jobs:
            self._launcher.check(jobs)

    # -- a search that goes on

    def _restore(self) -> None:
        """Takes over what earlier processes of the search have recorded, in sweep.json and in the run folders."""
        replicates = len(self._space.replicates)
        known = {number // replicates for number in self._running.sweep.jobs}
        self._proposals.keep(known)
        for configuration in self._proposals.numbers:
            values: list[list[float | None]] = [[] for _ in range(replicates)]
            goes_on = False
            for job in self._jobs(configuration):
                assert job.number is not None
                values[job.number % replicates] = self._reached(job)
                goes_on |= self._has_gone_on(job)
            self._search.restore(configuration, values, goes_on=goes_on)

    def _reached(self, job: Job) -> list[float | None]:
        """The values of a job at the rungs that it has reached; a last None: it failed."""
        sweep = self._running.sweep
        folder = sweep.folder(job)
        result = RunFolder(folder).stored()
        value = sweep.value(folder)
        values: list[float | None] = []
        for epoch in self._rungs[:-1]:
            if str(epoch) not in job.rungs:
                break
            values.append(job.rungs[str(epoch)])
        left = len(self._rungs) - len(values)
        if result.get("status") == "completed":
            return [*values, *([value] * left if value is not None else [None])]
        if result.get("status") == "failed":
            return [*values, None]
        pause = result.get("search") or {}
        epoch = self._rungs[len(values)]
        is_new = pause.get("state") in SEARCH_STATES and pause.get("epoch") == epoch
        was_killed = result.get("status") == "running"
        if not is_new or was_killed:  # a killed job pauses again
            return values
        # The sweep was killed before it recorded the value. None: the value is undefined.
        if value is not None and epoch is not None:
            assert job.number is not None
            sweep.reached(job.number, epoch, value)
        return [*values, value]

    def _has_gone_on(self, job: Job) -> bool:
        """Whether a job was continued after its pause and ended before the next one."""
        result = RunFolder(self._running.sweep.folder(job)).stored()
        return bool(job.rungs) and bool(result) and not result.get("search")


def _rungs(keys: SweepKeys, epochs: int, num_configurations: int, *, first: int) -> list[int | None]:
    """The epochs of the rungs, of which none is before `first`: more configurations do not change those of a search.

    Raises:
      ConfigError: there is none to pause at.
    """
    factor = keys.halving.factor or 1
    fewest = max(keys.halving.min_epochs, first)
    found = search.rungs(epochs, factor=factor, min_epochs=fewest, num_configurations=num_configurations)
    if len(found) > 1:
        return [*found]
    if num_configurations < factor:
        why = f"is {factor}, but there are only {num_configurations} configurations"
    else:
        why = f"is {factor}, but a training of {epochs} epochs has no epoch at which to pause (trainer.epochs)"
    raise ConfigError([Problem("sweep.halving.factor", f"{why}; set it to null")])
