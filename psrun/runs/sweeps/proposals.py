"""Configurations that Optuna proposes, by ask and tell, with its journal in the folder of the sweep."""

from __future__ import annotations

import itertools
import logging
import math
import os
import random
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun.errors import ConfigError, Problem
from psrun.runs.sweeps.sweep import SEARCH_JOURNAL

ADAPTIVE = ("tpe", "cmaes")  # whose proposals follow from results
_STUDY = "search"
_CONFIGURATION = "configuration"  # the attribute of a trial with the number of its configuration
_MOST_LISTED = 100_000  # combinations of a space that are known one by one


@dataclass(frozen=True)
class Parameter:
    """A key that a search varies: over listed values, or over numbers.

    Attributes:
      values: as they stand after KEY=; None for a range of numbers.
      low, high: the first and the last number of the range.
      step: None for all numbers between.
    """

    key: str
    values: tuple[str, ...] | None = None
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    is_integer: bool = False
    is_log: bool = False

    @property
    def samples(self) -> Sequence[str]:
        """Values that show whether the key takes them, as they stand after KEY=: all that are listed, else three."""
        if self.values is not None:
            return self.values
        if self.listed is not None:
            return [self.shown(value) for value in (self.listed[0], self.listed[-1])]
        # Not the ends: a learning rate of interval(0,0.1) is never 0. A whole number would hide that others are not.
        return [self.shown(self.low + share * (self.high - self.low)) for share in (0.001, 1 / math.pi, 0.999)]

    @property
    def listed(self) -> Sequence[Any] | None:
        """All of its values; None for a range of which not all are known."""
        if self.values is not None:
            return self.values
        if self.is_integer:
            return range(int(self.low), int(self.high) + 1, int(self.step or 1))
        if self.step is not None:
            return [self.low + place * self.step for place in range(round((self.high - self.low) / self.step) + 1)]
        return None

    def shown(self, value: Any) -> str:
        """A value as it stands after KEY=. Six digits tell configurations, and the tables that list them stay readable.

        A float of a range with steps has more: all of its values are known, and must not look alike.
        """
        if not isinstance(value, float):
            return str(value)
        return f"{value:.6g}" if self.step is None else f"{value:.12g}"

    def as_listed(self, value: Any) -> Any:
        """A value that Optuna gives, as it is in `listed`."""
        if self.is_integer or self.step is None:
            return value
        return self.low + round((value - self.low) / self.step) * self.step

    def distribution(self, optuna: Any) -> Any:
        """It as a distribution of Optuna's."""
        if self.values is not None:
            return optuna.distributions.CategoricalDistribution(self.values)
        if self.is_integer:
            step = int(self.step or 1)
            return optuna.distributions.IntDistribution(int(self.low), int(self.high), log=self.is_log, step=step)
        return optuna.distributions.FloatDistribution(self.low, self.high, log=self.is_log, step=self.step)


def _of_parameter(method: str, parameter: Parameter) -> Iterator[str]:
    """Why a method cannot vary a parameter."""
    low = parameter.low
    high = parameter.high
    if parameter.values is not None:
        if not parameter.values:
            yield "has a range without numbers: its end lies before its start"
        if method == "cmaes":
            yield "has listed values, but sweep.search=cmaes varies ranges of numbers; choose tpe"
        return
    if not (math.isfinite(low) and math.isfinite(high)):
        yield f"has the range {low:g} to {high:g}; both must be finite numbers"
    elif low >= high:
        yield f"has the range {low:g} to {high:g}; the first must be smaller"
    if parameter.is_log and low <= 0:
        yield f"has a logarithmic range from {low:g}; it must begin above 0"
    if method == "grid" and parameter.listed is None:
        yield "has a range of numbers, which has no grid; list values, or choose sweep.search=random or tpe"


def problems(method: str, space: Sequence[Parameter]) -> list[Problem]:
    """Why a method cannot search the space."""
    if not space:
        message = "finds nothing to vary; give a key several values or a range, such as"
        return [Problem("sweep.search", f"{message} 'optimizer.learning_rate=interval(0.001,0.1)'")]
    found = [Problem(each.key, message) for each in space for message in _of_parameter(method, each)]
    times = Counter(each.key for each in space)
    found += [Problem(key, "is varied twice; keep one of the arguments") for key in times if times[key] > 1]
    if method == "cmaes" and len(space) == 1:
        found.append(Problem("sweep.search", "is cmaes, which varies two or more keys; choose tpe"))
    if method == "grid" and not found and num_combinations(space) > _MOST_LISTED:
        message = f"is grid, but there are more than {_MOST_LISTED:,} combinations; choose random or tpe"
        found.append(Problem("sweep.search", message))
    return found


def num_combinations(space: Sequence[Parameter]) -> float:
    """The number of combinations; infinite with a range of which not all numbers are known."""
    sizes = [math.inf if (listed := each.listed) is None else len(listed) for each in space]
    return math.prod(sizes)


class OptunaProposals:
    """Configurations of a study in the folder of the sweep.

    Optuna counts a trial without a result as a bad one. `keep` records a trial whose jobs are gone as failed.

    Args:
      seed: of the sampler.

    Raises:
      ConfigError: Optuna is not installed.
    """

    def __init__(self, folder: Path, method: str, space: Sequence[Parameter], *, maximize: bool, seed: int) -> None:
        self._optuna = _optuna()
        self._space = {each.key: each for each in space}
        self._distributions = {each.key: each.distribution(self._optuna) for each in space}
        journal = folder / SEARCH_JOURNAL
        # Only the process that holds the folder opens the journal. A lock that a killed one left takes 30 s to expire.
        journal.with_name(f"{SEARCH_JOURNAL}.lock").unlink(missing_ok=True)
        _cut_after_last_line(journal)
        backend = self._optuna.storages.journal.JournalFileBackend(str(journal))
        storage = self._optuna.storages.JournalStorage(backend)
        self._study = self._optuna.create_study(
            storage=storage,
            study_name=_STUDY,
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
            pruner=self._optuna.pruners.NopPruner(),
        )
        trials = self._study.get_trials(deepcopy=False)
        self._study.sampler = self._sampler(method, seed + len(trials))  # the draws of a resumed search are other ones
        self._random = random.Random(seed + len(trials))
        self._asked: dict[int, Any] = {}  # trials of this process
        self._numbers: dict[int, int] = {}  # of trials, by configuration
        self._known: dict[int, Mapping[str, Any]] = {}  # the parameters of each configuration
        for trial in trials:
            number = trial.user_attrs.get(_CONFIGURATION)
            if number is not None:
                self._numbers[number] = trial.number
                self._known[number] = {key: trial.params[key] for key in self._space}
        self._listed: list[tuple[Any, ...]] | None = None
        if num_combinations(space) <= _MOST_LISTED:
            self._listed = [*itertools.product(*(each.listed or [] for each in space))]
        self._in_order = method == "grid"

    def ask(self) -> int | None:
        if self._listed is not None and len(self._known) >= len(self._listed):
            return None
        trial = self._trial_of(self._untried()[0]) if self._in_order else self._study.ask(self._distributions)
        if self._is_known(trial.params):
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            trial = self._trial_of(self._random.choice(self._untried()))
        number = next(each for each in itertools.count() if each not in self._known)  # jobs may have been removed
        trial.set_user_attr(_CONFIGURATION, number)
        self._asked[number] = trial
        self._numbers[number] = trial.number
        self._known[number] = {key: trial.params[key] for key in self._space}
        return number

    @property
    def numbers(self) -> list[int]:
        """The configurations that were asked for."""
        return sorted(self._known)

    def overrides(self, number: int) -> list[str]:
        """The arguments of a configuration that set what the search varies."""
        return self._arguments(self._known[number])

    def all_overrides(self) -> list[list[str]]:
        """The arguments of all configurations of a grid, in their order."""
        return [self._arguments(dict(zip(self._space, each))) for each in self._listed or []]

    def report(self, number: int, rung: int, value: float) -> None:
        if number in self._asked:  # those of an earlier process were reported by it
            self._asked[number].report(value, rung)

    def tell(self, number: int, value: float | None) -> None:
        failed = self._optuna.trial.TrialState.FAIL
        # NaN would be a failure, and infinity the best value, for ever.
        state = failed if value is None or not math.isfinite(value) else None
        values = None if state is failed else value
        self._study.tell(self._numbers[number], values, state=state, skip_if_finished=True)

    def prune(self, numbers: Collection[int]) -> None:
        """These configurations do not go on: their value is the last one that was reported."""
        pruned = self._optuna.trial.TrialState.PRUNED
        for number in numbers:
            self._study.tell(self._numbers[number], state=pruned, skip_if_finished=True)

    def keep(self, numbers: Collection[int]) -> None:
        """Of the trials that earlier processes asked for, those of other configurations than `numbers` have failed."""
        running = self._optuna.trial.TrialState.RUNNING
        for trial in self._study.get_trials(deepcopy=False, states=[running]):
            if trial.user_attrs.get(_CONFIGURATION) not in numbers:
                self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
        self._known = {number: params for number, params in self._known.items() if number in numbers}

    def _is_known(self, params: Mapping[str, Any]) -> bool:
        return self._listed is not None and self._combination(params) in map(self._combination, self._known.values())

    def _untried(self) -> list[tuple[Any, ...]]:
        """The combinations that were not proposed yet, of a space whose combinations are known."""
        tried = {*map(self._combination, self._known.values())}
        return [each for each in self._listed or [] if each not in tried]

    def _combination(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters as in `_listed`."""
        return tuple(each.as_listed(params[key]) for key, each in self._space.items())

    def _arguments(self, params: Mapping[str, Any]) -> list[str]:
        return [f"{key}={each.shown(params[key])}" for key, each in self._space.items()]

    def _trial_of(self, combination: Sequence[Any]) -> Any:
        """A trial of one combination. Those that a killed process has enqueued come before it, and fail."""
        self._study.enqueue_trial(dict(zip(self._space, combination)))
        while True:
            trial = self._study.ask(self._distributions)
            if self._combination(trial.params) == tuple(combination):
                return trial
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def _sampler(self, method: str, seed: int) -> Any:
        samplers = self._optuna.samplers
        if method == "tpe":
            # Parameters that depend on each other are drawn together. Others run meanwhile: they count as bad.
            return samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        if method == "cmaes":
            return samplers.CmaEsSampler(seed=seed)
        return samplers.RandomSampler(seed=seed)


def _cut_after_last_line(file: Path) -> None:
    """Removes a line that a killed process, or one on a full disk, began: Optuna would append to it."""
    if not file.exists():
        return
    content = file.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(file, end)


def _optuna() -> Any:
    logging.getLogger("optuna").setLevel(logging.WARNING)
    try:
        import cmaes  # noqa: F401  # Optuna imports it when it first needs it
        import optuna
    except ImportError as error:
        message = "requires Optuna: pip install 'psrun[optuna]'"
        raise ConfigError([Problem("sweep.search", message)]) from error
    if int(optuna.__version__.partition(".")[0]) < 4:
        message = f"requires Optuna 4 or newer, but {optuna.__version__} is installed: pip install -U 'psrun[optuna]'"
        raise ConfigError([Problem("sweep.search", message)])
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
