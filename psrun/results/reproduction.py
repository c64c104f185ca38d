"""Compares a reproduced run with its record: the environment now and then, and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, Problem
from psrun.results import provenance
from psrun.results.provenance import WorkTree
from psrun.results.reading import mapping, number
from psrun.results.report import rows, runs
from psrun.results.sweep import DEFAULT_METRICS

LEAST_SEEDS = 3
_ABSENT = "-"
_SHOWN = 25  # differences of packages
# The quantile 0.975 of Student's t distribution, for 1, 2, ... degrees of freedom; then that of the normal one.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T_OF_MANY = 1.96
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
    if then.get("python") != now.get("python"):
        found.append(Difference("python", str(then.get("python")), str(now.get("python"))))
    before = mapping(then.get("packages"))
    here = mapping(now.get("packages"))
    for name in sorted({*before, *here}):
        if before.get(name) != here.get(name):
            found.append(Difference(f"package {name}", before.get(name, _ABSENT), here.get(name, _ABSENT)))
    return [*found, *_of_hardware(mapping(then.get("hardware")), mapping(now.get("hardware")))]


def _of_hardware(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    found = [
        Difference(key, str(then.get(key)), str(now.get(key)))
        for key in ("cpu", "cores")
        if then.get(key) != now.get(key)
    ]
    gpus_then, gpus_now = (", ".join(each.get("gpus") or []) or "none" for each in (then, now))
    if gpus_then != gpus_now:
        found.append(Difference("gpus", gpus_then, gpus_now))
    sizes = [number(each.get("memory_bytes")) or 0 for each in (then, now)]
    if abs(sizes[0] - sizes[1]) > 0.01 * max(sizes):  # a kernel keeps a little more or less for itself
        found.append(Difference("memory", decimal(int(sizes[0])), decimal(int(sizes[1])), matters=False))
    return found


def of_code(folder: Path, code: Mapping[str, Any], tree: WorkTree, places: Sequence[Path]) -> list[Difference]:
    """How the code here differs from the recorded one. The run uses the recorded modules.

    Args:
      folder: the recorded run.
      tree: the repository here.
      places: where Python finds the user's modules.
    """
    found = []
    then = _commit(code.get("commit"), code.get("dirty"))
    now = _commit(tree.commit, tree.dirty)
    if then != now:
        found.append(Difference("git commit", then, now, matters=False))
    for name, copy in sorted(mapping(code.get("modules")).items()):
        inside = Path(copy).relative_to(provenance.MODULES)
        here = next((place / inside for place in places if (place / inside).is_file()), None)
        if here is None:
            found.append(Difference(f"module {name}", "recorded", "not found", matters=False))
        elif here.read_bytes() != (folder / copy).read_bytes():
            found.append(Difference(f"module {name}", "recorded", f"changed: {here}", matters=False))
    return found


def _commit(commit: str | None, dirty: bool | None) -> str:
    return _ABSENT if commit is None else f"{commit[:12]}{' and changes' if dirty else ''}"


def of_data(then: Mapping[str, Any], now: Mapping[str, Mapping[str, Any] | None]) -> list[Difference]:
    """The files that are gone or whose content differs, of two values of `data.hashes` of run.json."""
    return [
        Difference(f"data {name}", _content(entry), _content(now.get(name)))
        for name, entry in then.items()
        if entry != now.get(name)
    ]


def _content(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "not found"
    digest = str(entry.get("sha256") or entry.get("version"))
    return f"{entry['bytes']:,} bytes, {digest[:12]}"


def table(title: str, differences: Sequence[Difference]) -> RenderableType:
    """The differences, a row each; of very many, such as of packages, the first ones."""
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
    """Why a run with the same seed and environment has equal numbers.

    Attributes:
      rounding: the relative difference that sums over workers, in the order in which they finish, may have.
    """

    why: str
    rounding: float = 0.0


def determinism(run: RunConfig, results: Sequence[Mapping[str, Any]]) -> Determinism | None:
    """None if the numbers of the run may differ.

    Args:
      results: run.json of the run and of its reproduction.
    """
    if any(mapping(mapping(each.get("environment")).get("hardware")).get("gpus") for each in results):
        return None  # sums on GPUs have no fixed order
    if any(each.get("recoveries") for each in results) or run.data_service:
        return None
    if not run.cluster.has_parameter_servers:
        return Determinism("it has no parameter servers")
    workers = {mapping(each.get("cluster")).get("num_workers") for each in results}
    if workers == {1}:
        return Determinism("it has one worker")
    mode = run.consistency
    synchronous = mode.averages and all(number == mode.gradients_per_update(number) for number in workers if number)
    # Weights are equal; metrics are sums of float32 that the workers add to.
    return Determinism("its workers are synchronous", _ROUNDING) if synchronous else None


@dataclass(frozen=True)
class Spread:
    """The values of a metric in runs that differ only in the seed."""

    values: Sequence[float]

    @property
    def interval(self) -> tuple[float, float]:
        """Where one more run has its value with a probability of 95 %: mean ± t · s · sqrt(1 + 1/n)."""
        freedom = len(self.values) - 1
        quantile = _T[freedom - 1] if freedom <= len(_T) else _T_OF_MANY
        half = quantile * stdev(self.values) * sqrt(1 + 1 / len(self.values))
        return mean(self.values) - half, mean(self.values) + half


@dataclass(frozen=True)
class Comparison:
    """The results of a run and of its reproduction.

    Attributes:
      judged: the metric that decides where the numbers may differ.
      determinism: None if they may.
      num_seeds: the number of runs in `spreads`.
    """

    then: Mapping[str, float]
    now: Mapping[str, float]
    steps: tuple[Any, Any]
    spreads: Mapping[str, Spread]
    judged: str | None
    determinism: Determinism | None
    differences: Sequence[Difference]
    num_seeds: int = 0

    @property
    def equal(self) -> bool:
        """Whether all metrics are equal, up to the rounding that the run has, and the number of steps."""
        same = all(self._is_equal(name) for name in {**self.then, **self.now})
        return same and self.steps[0] == self.steps[1]

    @property
    def _rounding(self) -> float:
        return self.determinism.rounding if self.determinism else 0.0

    def _is_equal(self, name: str) -> bool:
        if name not in self.then or name not in self.now:
            return False
        return isclose(self.then[name], self.now[name], rel_tol=self._rounding)

    @property
    def is_reproduced(self) -> bool:
        """Whether the numbers are equal, or where they may differ, within the spread of the seeds."""
        return self.equal or (not self._must_be_equal and self._is_within is True and self.steps[0] == self.steps[1])

    @property
    def _why(self) -> str:
        return self.determinism.why if self.determinism else ""

    @property
    def _must_be_equal(self) -> bool:
        return self.determinism is not None and not any(each.matters for each in self.differences)

    @property
    def _is_within(self) -> bool | None:
        name = self.judged or ""
        if name not in self.spreads or name not in self.now:
            return None
        low, high = self.spreads[name].interval
        return low <= self.now[name] <= high

    @property
    def verdict(self) -> str:
        """What the comparison shows, in one sentence."""
        if self.equal:
            exact = self.then == self.now
            return "reproduced: all numbers are equal" + ("" if exact else f" up to rounding ({self._rounding:g})")
        if self.steps[0] != self.steps[1]:
            return f"not reproduced: {self.steps[1]} steps instead of {self.steps[0]}"
        if self._must_be_equal:
            return f"not reproduced: the numbers differ, and should be equal: {self._why}"
        why = "environment or keys differ" if self._why else "asynchronous updates have no fixed order"
        if self._is_within is None:
            return (
                f"not judged: the numbers differ, as they may ({why}); by how much is unknown without "
                f"{LEAST_SEEDS} runs that differ only in the seed: name them with --seeds FOLDER"
            )
        where = "within" if self._is_within else "outside"
        start = "reproduced" if self._is_within else "not reproduced"
        return f"{start}: {self.judged} is {where} the 95 % prediction interval of {self.num_seeds} seeds ({why})"

    def table(self) -> Table:
        """A row for each metric."""
        expected = ["95 % of further seeds"] if self.spreads else []
        result = _table("Results", "metric", "recorded", "reproduced", "difference", *expected)
        for name in {**self.then, **self.now}:
            values = [self.then.get(name), self.now.get(name)]
            known = [value for value in values if value is not None]
            change = _ABSENT if len(known) < 2 else "equal" if known[0] == known[1] else f"{known[1] - known[0]:+.3g}"
            result.add_row(name, *map(_shown, values), change, *([self._expected(name)] if self.spreads else []))
        result.add_row("steps", *map(str, self.steps), "equal" if self.steps[0] == self.steps[1] else "differ")
        return result

    def _expected(self, name: str) -> str:
        if name not in self.spreads:
            return ""
        low, high = self.spreads[name].interval
        return f"{low:.6g} to {high:.6g}"

    @property
    def facts(self) -> dict[str, Any]:
        """For run.json of the reproduction."""
        differing = {
            name: [value, self.now.get(name)] for name, value in self.then.items() if value != self.now.get(name)
        }
        return {
            "equal": self.equal,
            "reproduced": self.is_reproduced,
            "verdict": self.verdict,
            "environment": [each.what for each in self.differences],
            "metrics": differing,
        }


def metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """The final metrics that are numbers."""
    found = mapping(result.get("metrics"))
    return {name: float(value) for name, value in found.items() if number(value) is not None}


def spreads(folder: Path, folders: Sequence[Path], *, named: bool) -> tuple[dict[str, Spread], int]:
    """The metrics of the runs in `folders` that differ from the run in `folder` only in the seed, and their number.

    Args:
      named: whether the user named the folders.

    Raises:
      ConfigError: they are named, and hold too few such runs.
    """
    found = runs.find([folder, *folders])
    numbers = dict(zip((run.path for run in found), rows.groups(found)))
    own = numbers[folder]
    same = [run for run in found if numbers[run.path] == own and run.result.get("status") == "completed"]
    if len({run.config.get(rows.SEED) for run in same}) < LEAST_SEEDS:
        if named:
            message = (
                f"{len(same)} completed runs in {', '.join(map(str, folders))} differ from {folder.name} only in the "
                f"seed, itself included; a spread takes {LEAST_SEEDS} seeds"
            )
            raise ConfigError([Problem("--seeds", message)])
        return {}, 0
    values = [metrics(run.result) for run in same]
    shared = set.intersection(*map(set, values))
    return {name: Spread([each[name] for each in values]) for name in values[0] if name in shared}, len(same)


def judged_metric(named: str | None, known: Mapping[str, float]) -> str | None:
    """The metric that decides: that of the sweep if the runs have it, else val_loss or loss."""
    return next((name for name in (named, *DEFAULT_METRICS) if name in known), None)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _shown(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.9g}"
