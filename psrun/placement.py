"""Where variables live: read from a built model, or predicted for a topology without starting it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from psrun.errors import ConfigError, Problem

_SHARD = re.compile(r"^(?P<variable>.+)/part_(?P<shard>\d+)$")
CHIEF = "chief-0"


@dataclass(frozen=True)
class Placed:
    """One shard of a variable (a whole variable is its own only shard) on the task that holds it.

    Attributes:
      variable: its name, without the shard.
      shard: its number, from 0.
      task: such as 'ps-1'.
      bytes: of the shard's values.
      kind: 'model', 'optimizer' or 'metric'.
      variable_shape: of the whole variable.
      dtype: such as 'float32'.
    """

    variable: str
    shard: int
    task: str
    bytes: int
    kind: str
    variable_shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Balance:
    """Bytes on each task, and how much more than the mean the fullest holds (1.0: perfectly even)."""

    bytes_by_task: dict[str, int]
    max_over_mean: float


def balance(placed: Iterable[Placed], tasks: Sequence[str] = ()) -> Balance:
    """How evenly shards lie on the tasks that hold any, and on `tasks`."""
    by_task = dict.fromkeys(tasks, 0)
    for shard in placed:
        by_task[shard.task] = by_task.get(shard.task, 0) + shard.bytes
    total = sum(by_task.values())
    return Balance(dict(sorted(by_task.items())), max(by_task.values()) * len(by_task) / total if total else 1.0)


def check_rows(placed: Iterable[Placed], num_shards: int) -> None:
    """Raises ConfigError where the largest variable, for whose sake one shards, has fewer rows than `num_shards`."""
    sizes: dict[Placed, int] = {}
    for shard in placed:
        if shard.kind == "model" and shard.variable_shape:
            whole = replace(shard, shard=0, task="", bytes=0)
            sizes[whole] = sizes.get(whole, 0) + shard.bytes
    largest = max(sizes, key=lambda variable: sizes[variable], default=None)
    if largest and largest.variable_shape[0] < num_shards:
        message = f"is {num_shards}, more than the {largest.variable_shape[0]} rows of {largest.variable}"
        raise ConfigError([Problem("partitioner.num_shards", f"{message}, the largest variable")])


def with_fewer_rows(placed: Iterable[Placed], num_shards: int) -> list[str]:
    """Model variables with rows, but fewer than `num_shards`."""
    model = {shard.variable: shard.variable_shape for shard in placed if shard.kind == "model"}
    return [name for name, shape in model.items() if shape and shape[0] < num_shards]


def observed(kind: str, variables: Iterable) -> list[Placed]:
    """Where TensorFlow put `variables`: plain ones, shards (named '.../part_N'), and ShardedVariables."""
    shards = [shard for variable in variables for shard in getattr(variable, "variables", None) or [variable]]
    found = []
    for shard in shards:
        name, number = split_name(shard.name)
        found.append((name, number, tuple(shard.shape), shard.dtype, _task(shard.device)))
    rows: dict[str, int] = {}
    for name, _, shape, _, _ in found:
        rows[name] = rows.get(name, 0) + (shape[0] if shape else 0)
    return [
        Placed(
            *(name, number, task, math.prod(shape) * dtype.size, kind),
            variable_shape=(rows[name], *shape[1:]) if shape else (),
            dtype=dtype.name,
        )
        for name, number, shape, dtype, task in found
    ]


def split_name(name: str) -> tuple[str, int]:
    """'table/part_1:0' is shard 1 of 'table'."""
    name = name.partition(":")[0]
    match = _SHARD.match(name)
    return (match["variable"], int(match["shard"])) if match else (name, 0)


def _task(device: str) -> str:
    match = re.search(r"/job:(?P<job>ps|worker|chief)/.*task:(?P<index>\d+)", device or "")
    return f"{match['job']}-{match['index']}" if match else CHIEF


@dataclass(frozen=True)
class Planned:
    """A variable to be created: name, shape, dtype and bytes a value, kind, and the variable to lie beside (a slot)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    value_bytes: int
    kind: str
    beside: str | None = None


def predicted(
    variables: Iterable[Planned], *, num_ps: int, num_shards: Callable[[Planned], int] | None
) -> list[Placed]:
    """Where ParameterServerStrategy will put `variables`, created in this order.

    Shards go to the parameter servers in turn, whatever their size; a slot goes beside its variable. Source:
    `ParameterServerStrategyV2Extended._create_variable` of TensorFlow 2.21; a test holds this against it.

    Args:
      num_ps: 0 where everything lives in one process.
      num_shards: in how many shards a variable is to be cut (at most its rows); None for no partitioner.
    """
    placed: list[Placed] = []
    tasks_of: dict[str, list[str]] = {}
    turn = 0
    for variable in variables:
        rows = variable.shape[0] if variable.shape else 1
        if variable.beside in tasks_of and variable.beside is not None:
            tasks = tasks_of[variable.beside] if variable.shape else tasks_of[variable.beside][:1]
        else:
            count = min(num_shards(variable), rows) if num_ps and num_shards and variable.shape else 1
            tasks = [f"ps-{(turn + i) % num_ps}" if num_ps else CHIEF for i in range(count)]
            turn += count
        tasks_of[variable.name] = tasks
        row_bytes = math.prod(variable.shape[1:]) * variable.value_bytes
        for shard, task in enumerate(tasks):
            shard_rows = rows // len(tasks) + (shard < rows % len(tasks))
            placed.append(
                Placed(
                    *(variable.name, shard, task, shard_rows * row_bytes, variable.kind),
                    variable_shape=variable.shape,
                    dtype=variable.dtype,
                )
            )
    return placed
