"""Compares a reproduced run with its record: the environment now and then, and the results."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, Problem
from psrun.files import as_mapping, as_number
from psrun.results import provenance
from psrun.results.provenance import WorkTree
from psrun.runs.report import recorded, rows, runs
from psrun.runs.report.recorded import ABSENT
from psrun.runs.report.spread import Spread
from psrun.runs.sweeps.sweep import default_metric

LEAST_RUNS = 3
_SHOWN = 25  # differences
_NAMED = 5  # of the packages that are only counted
_PACKAGE = "package "
_PYTHON = "python"
# The packages that psrun computes and composes a run with.
_OF_PSRUN = ("psrun", "tensorflow", "tf-keras", "keras", "numpy", "pyarrow", "hydra-core", "omegaconf")
_ROUNDING = 1e-5


# -- environment


@dataclass(frozen=True)
class Difference:
    """What differs between the record of a run and here.

    Attributes:
      matters: whether the reproduced run may give other numbers for it.
    """

    what: str
    then: str
    now: str
    matters: bool = True


def of_environment(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """The differences of two values of the key `environment` of run.json."""
    found = []
    pairs = recorded.differing(recorded.environment(then), recorded.environment(now))
    for name, (before, here) in pairs.items():
        matters = name != recorded.MEMORY
        found.append(Difference(name, recorded.text(name, before), recorded.text(name, here), matters))
    return found


def imported_packages(folder: Path, code: Mapping[str, Any]) -> list[str]:
    """The packages that psrun, or a recorded module of the user, imports by itself: names as in `environment`.

    Args:
      folder: the recorded run; `code`: that key of its run.json.
    """
    names: dict[str, None] = {}
    for copy in as_mapping(code.get("modules")).values():
        names |= dict.fromkeys(_imported_in(folder / str(copy)))
    packages = dict.fromkeys(_OF_PSRUN)
    if names:
        distributions = packages_distributions()
        for name in names:
            packages |= dict.fromkeys(map(provenance.normalized, distributions.get(name, [name])))
    return list(packages)


def _imported_in(file: Path) -> list[str]:
    """The names of the packages that a module imports; none if it cannot be read."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return [name.partition(".")[0] for name in names]


def is_other_package(difference: Difference, imported: Sequence[str]) -> bool:
    """Whether something differs in a package that is none of the `imported` ones."""
    name = difference.what.removeprefix(_PACKAGE)
    return name != difference.what and name not in imported


def counted(others: Sequence[Difference]) -> str:
    """How many other packages differ, in words."""
    names = [each.what.removeprefix(_PACKAGE) for each in others]
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    packages = "1 other package differs" if len(names) == 1 else f"{len(names):,} other packages differ"
    return f"{packages} ({shown}); neither psrun nor the modules of the run import them by themselves"


def same(then: Mapping[str, Any], now: Mapping[str, Any], imported: Sequence[str]) -> str:
    """The versions of Python and of the `imported` packages that are the same in two environments, in words."""
    before = recorded.environment(then)
    here = recorded.environment(now)
    differing = recorded.differing(before, here)
    parts = []
    for name in (_PYTHON, *(f"{_PACKAGE}{each}" for each in imported)):
        if before.get(name) is not None and name not in differing:
            parts.append(f"{name.removeprefix(_PACKAGE)} {before[name]}")
    return ", ".join(parts) or "none"


def of_code(folder: Path, code: Mapping[str, Any], tree: WorkTree, places: Sequence[Path]) -> list[Difference]:
    """How the code here differs from the recorded one. The run uses the recorded modules.

    Args:
      folder: the recorded run.
      tree: the repository here.
      places: where Python finds the user's modules.
    """
    then = recorded.code(folder, code)
    now = _code_here(code, tree, places)
    found = []
    for name, (before, here) in recorded.differing(then, now).items():
        if name in recorded.copies(code) or name == recorded.CHANGES:
            texts = recorded.lines(before, here)
        elif name in now:
            texts = recorded.text(name, before), recorded.text(name, here)
        else:  # such as the branch, which is no code
            continue
        found.append(Difference(name, *texts, matters=False))
    return found


def _code_here(code: Mapping[str, Any], tree: WorkTree, places: Sequence[Path]) -> dict[str, Any]:
    """As `recorded.code` of a run that had started here with the same modules; see `of_code`."""
    now: dict[str, Any] = {"commit": tree.commit, "dirty": tree.dirty}
    if tree.diff:
        now[recorded.CHANGES] = recorded.decoded(tree.diff)
    for name, copy in sorted(as_mapping(code.get("modules")).items()):
        inside = Path(copy).relative_to(provenance.MODULES)
        here = next((place / inside for place in places if (place / inside).is_file()), None)
        if here is not None:
            now[recorded.module(name)] = recorded.content(here, called=str(here))
    return now


def of_data(then: Mapping[str, Any], now: Mapping[str, Mapping[str, Any] | None]) -> list[Difference]:
    """The files that are gone or whose content differs.

    Args:
      then: `data.hashes` of run.json.
      now: the same files here; None for a file that is gone.
    """
    found = []
    for name in recorded.differing(_identities(then), _identities(now)):
        found.append(Difference(f"data {name}", recorded.file_text(then[name]), recorded.file_text(now[name])))
    return found


def _identities(entries: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """What identifies the content of each file."""
    return {name: recorded.file_identity(as_mapping(entry)) for name, entry in entries.items()}


def table(title: str, differences: Sequence[Difference]) -> RenderableType:
    """The differences, a row each; of very many the first ones."""
    if not differences:
        return Text(f"{title}: no difference")
    rows_of = _table(title, "what", "recorded", "here")
    for each in differences[:_SHOWN]:
        rows_of.add_row(each.what, each.then, each.now)
    rest = len(differences) - _SHOWN
    return Group(rows_of, Text(f"and {rest} more")) if rest > 0 else rows_of


# -- results


@dataclass(frozen=True)
class Determinism:
    """Whether a run with the same seed and environment has equal numbers.

    Attributes:
      why: or why not.
      rounding: the relative difference that sums over workers, in the order in which they finish, may have.
    """

    equal: bool
    why: str
    rounding: float = 0.0


def determinism(run: RunConfig, results: Sequence[Mapping[str, Any]], *, resumed: bool = False) -> Determinism:
    """What is to be expected of a run and of its reproduction.

    Args:
      results: run.json of both.
      resumed: whether the run was resumed from a checkpoint: its data began anew then.
    """
    for applies, why in (
        (any(_gpus(each) for each in results), "sums on GPUs have no fixed order"),
        (any(each.get("recoveries") for each in results), "tasks were lost, and their steps repeated"),
        (resumed, "the run was resumed, and its data began anew"),
    ):
        if applies:
            return Determinism(False, why)
    if not run.cluster.has_parameter_servers:
        return Determinism(True, "it has no parameter servers")
    if run.trainer.prefetch_rows:
        return Determinism(False, "rows are fetched while the step before may still update them")
    mode = run.consistency
    if mode.averages and not mode.waits:
        return Determinism(False, "the speed of workers decides which gradients make an update")
    workers = {as_mapping(each.get("cluster")).get("num_workers") for each in results}
    if workers == {1}:
        return Determinism(True, "it has one worker")
    if not mode.averages:
        return Determinism(False, "asynchronous updates have no fixed order")
    if any(number != mode.gradients_per_update(number) for number in workers if number):
        return Determinism(False, "the fastest workers decide which gradients are applied")
    # Weights are equal; metrics are sums of float32 that the workers add to.
    return Determinism(True, "its workers are synchronous", _ROUNDING)


def _gpus(result: Mapping[str, Any]) -> Any:
    return as_mapping(as_mapping(result.get("environment")).get("hardware")).get("gpus")


@dataclass(frozen=True)
class Sample:
    """Runs with the configuration of a run.

    Attributes:
      name: which runs: '10 seeds' or '4 runs with the same seed'; empty without any.
      intervals: by metric, where one more such run has its value with a probability of 95 %.
    """

    name: str = ""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reproduction:
    """The results of a run and of its reproduction.

    Attributes:
      judged: the metric that decides where the numbers may differ.
      determinism: whether they may.
    """

    then: Mapping[str, float]
    now: Mapping[str, float]
    steps: tuple[Any, Any]
    sample: Sample
    judged: str | None
    determinism: Determinism
    differences: Sequence[Difference]

    @property
    def equal(self) -> bool:
        """Whether all metrics are equal, up to the rounding that the run has, and the number of steps."""
        differing = recorded.differing(self.then, self.now, tolerance=self.determinism.rounding)
        return not differing and self.steps[0] == self.steps[1]

    @property
    def is_reproduced(self) -> bool:
        """Whether the numbers are equal, or where they may differ, within the spread of the seeds."""
        return self.equal or (not self._must_be_equal and self._is_within is True and self.steps[0] == self.steps[1])

    @property
    def _must_be_equal(self) -> bool:
        return self.determinism.equal and not any(each.matters for each in self.differences)

    @property
    def _is_within(self) -> bool | None:
        name = self.judged or ""
        if name not in self.sample.intervals or name not in self.now:
            return None
        low, high = self.sample.intervals[name]
        return low <= self.now[name] <= high

    @property
    def verdict(self) -> str:
        """What the comparison shows, in one sentence."""
        if self.equal:
            equal = "reproduced: all numbers are equal"
            if not recorded.differing(self.then, self.now):
                return equal
            return f"{equal} up to rounding ({self.determinism.rounding:g})"
        if self.steps[0] != self.steps[1]:
            return f"not reproduced: {self.steps[1]} steps instead of {self.steps[0]}"
        if self._must_be_equal:
            return f"not reproduced: the numbers differ, and should be equal: {self.determinism.why}"
        why = "environment or keys differ" if self.determinism.equal else self.determinism.why
        if self._is_within is None:
            return (
                f"not judged: the numbers differ, as expected ({why}). To judge by how much, name a folder with "
                f"{LEAST_RUNS} runs that differ at most in the seed: --seeds FOLDER"
            )
        where = "within" if self._is_within else "outside"
        start = "reproduced" if self._is_within else "not reproduced"
        return f"{start}: {self.judged} is {where} the 95 % prediction interval of {self.sample.name} ({why})"

    def table(self) -> Table:
        """A row for each metric."""
        headings = ["metric", "recorded", "reproduced", "difference"]
        if self.sample.name:
            headings.append(f"95 % interval of {self.sample.name}")
        result = _table("Results", *headings)
        for name in {**self.then, **self.now}:
            before = self.then.get(name)
            here = self.now.get(name)
            cells = [name, _shown(before), _shown(here), _change(before, here)]
            if name in self.sample.intervals:
                low, high = self.sample.intervals[name]
                cells.append(f"{low:.6g} to {high:.6g}")
            result.add_row(*cells)
        result.add_row("steps", *map(str, self.steps), "equal" if self.steps[0] == self.steps[1] else "differ")
        return result

    @property
    def facts(self) -> dict[str, Any]:
        """For run.json of the reproduction."""
        differing = recorded.differing(self.then, self.now)
        return {
            "equal": self.equal,
            "reproduced": self.is_reproduced,
            "verdict": self.verdict,
            "environment": [each.what for each in self.differences],
            "metrics": {name: list(pair) for name, pair in differing.items()},
        }


def metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """The final metrics that are numbers."""
    found = as_mapping(result.get("metrics"))
    return {name: float(value) for name, value in found.items() if as_number(value) is not None}


def sample(folder: Path, folders: Sequence[Path], *, named: bool) -> Sample:
    """The metrics of the completed runs in `folders` with the configuration of the run in `folder`, itself included.

    Of runs with its seed, if there are enough: they differ less than those of several seeds.

    Args:
      named: whether the user named the folders.

    Raises:
      ConfigError: they are named, and hold too few such runs; or SciPy is not installed.
    """
    found = runs.find([folder, *folders])
    numbers = dict(zip((run.path for run in found), rows.groups(found)))
    same = [run for run in found if numbers[run.path] == numbers[folder] and run.result.get("status") == "completed"]
    seed = next(run.config.get(rows.SEED) for run in found if run.path == folder)
    repeated = [run for run in same if run.config.get(rows.SEED) == seed]
    if len(repeated) >= LEAST_RUNS:
        return _sample_of(repeated, f"{len(repeated)} runs with the same seed")
    by_seed = {run.config.get(rows.SEED): run for run in reversed(same)}
    if len(by_seed) >= LEAST_RUNS:
        return _sample_of([*by_seed.values()], f"{len(by_seed)} seeds")
    if named:
        message = (
            f"{len(same)} completed runs in {', '.join(map(str, folders))} have the configuration of {folder.name}, "
            f"itself included; a spread needs {LEAST_RUNS}, all with one seed or each with another"
        )
        raise ConfigError([Problem("--seeds", message)])
    return Sample()


def _sample_of(chosen: Sequence[runs.Run], name: str) -> Sample:
    values = [metrics(run.result) for run in chosen]
    shared = set.intersection(*map(set, values))
    intervals = {}
    for metric in values[0]:
        if metric in shared:
            intervals[metric] = Spread.of([each[metric] for each in values]).interval()
    return Sample(name, intervals)


def judged_metric(named: str | None, known: Mapping[str, float]) -> str | None:
    """The metric that decides: that of the sweep if the runs have it, else val_loss or loss."""
    return named if named in known else default_metric(known)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _change(before: float | None, here: float | None) -> str:
    if before is None or here is None:
        return ABSENT
    if before == here:
        return "equal"
    return f"{here - before:+.3g}"


def _shown(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.9g}"
