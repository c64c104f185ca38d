"""Distributions of simulated delays: the probability of each number of updates. No TensorFlow."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KINDS = ("constant", "uniform", "geometric", "recorded")
_TAIL = 0.001  # longer delays than those of all other updates count as the longest of these


def histogram(recorded: Mapping[str, Any]) -> dict[int, int]:
    """The number of updates by staleness, from `staleness` in run.json or from the part of a worker in it.

    Raises:
      KeyError, TypeError, ValueError: it has another form.
    """
    pairs = {int(staleness): int(number) for staleness, number in recorded["histogram"]}
    if not pairs or min(pairs) < 0 or min(pairs.values()) < 1:
        raise ValueError("no updates, or negative numbers")
    return dict(sorted(pairs.items()))


def of_run(run: str) -> dict[int, int]:
    """The recorded histogram of a run.

    Args:
      run: a run folder, or its run.json.

    Raises:
      ValueError: there is no such file, or no histogram in it; the message says which.
    """
    path = Path(run).expanduser()
    path = path / "run.json" if path.is_dir() else path
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    try:
        return histogram(recorded["staleness"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no histogram at staleness.histogram") from error


def probabilities(kind: str, mean: float | None, run: str | None) -> list[float]:
    """The probabilities of the delays 0, 1, ...; the last one is not 0.

    Args:
      kind: one of `KINDS`. Uniform: from 0 to twice the mean.
      mean: in updates; None if recorded.
      run: as in `of_run`; None otherwise.

    Raises:
      ValueError: the distribution does not exist; the message says why.
    """
    if kind == "recorded":
        if run is None:
            raise ValueError("is required with consistency.delay=recorded; set it to a run folder")
        counts = of_run(run)
        return _cut([counts.get(delay, 0) / sum(counts.values()) for delay in range(max(counts) + 1)])
    if mean is None:
        raise ValueError(f"is required with consistency.delay={kind}; set it to a number of updates")
    if kind == "geometric":
        share = 1 / (1 + mean)
        longest = 0 if share == 1 else math.ceil(math.log(_TAIL) / math.log(1 - share))
        return _cut([share * (1 - share) ** delay for delay in range(longest + 1)])
    most = mean if kind == "constant" else 2 * mean
    if most != int(most):
        kind_of_number = "an integer" if kind == "constant" else "a multiple of 0.5"
        raise ValueError(f"is {mean}, must be {kind_of_number} with consistency.delay={kind}")
    number = int(most) + 1
    return [0.0] * (number - 1) + [1.0] if kind == "constant" else [1 / number] * number


def _cut(values: list[float]) -> list[float]:
    """Without the tail, whose probability goes to the longest delay that is kept."""
    up_to = itertools.accumulate(values)
    longest = next(delay for delay, share in enumerate(up_to) if share > 1 - _TAIL)
    return [*values[:longest], 1.0 - sum(values[:longest])]
