"""The placement of variables: read from a built model, or predicted for a topology without starting it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.filesize import decimal

from psrun.errors import ConfigError, Problem
from psrun.tf_internals.names import split_name

CHIEF = "chief-0"
_UNEVEN = 2.0  # the maximum of the bytes on servers, divided by their mean, from which a server is a bottleneck
_SMALL_BYTES = 1_000_000  # on a server, which are read and written in less time than a message takes


@dataclass(frozen=True)
class Placed:
    """One shard of a variable (an unsharded variable has one shard) on the task that holds it.

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
    """Bytes on each task, and the ratio of the maximum to the mean (1.0: perfectly even)."""

    bytes_by_task: dict[str, int]
    max_over_mean: float


def balance(placed: Iterable[Placed], tasks: Sequence[str] = ()) -> Balance:
    """The balance of shards over the tasks that hold any, and over `tasks`."""
    by_task = dict.fromkeys(tasks, 0)
    for shard in placed:
        by_task[shard.task] = by_task.get(shard.task, 0) + shard.bytes
    total = sum(by_task.values())
    return Balance(dict(sorted(by_task.items())), max(by_task.values()) * len(by_task) / total if total else 1.0)


def uneven(placed: Iterable[Placed], num_ps: int) -> list[str]:
    """A warning if one of the parameter servers holds more than twice the mean; none for small models."""
    shards = [shard for shard in placed if shard.task.startswith("ps-")]
    if not shards:
        return []
    found = balance(shards, [f"ps-{index}" for index in range(num_ps)])
    sizes = found.bytes_by_task
    fullest = max(sizes, key=lambda task: sizes[task])
    if found.max_over_mean <= _UNEVEN or sizes[fullest] < _SMALL_BYTES:
        return []
    largest, _ = _largest(shard for shard in shards if shard.task == fullest)
    return [
        f"{fullest} holds {decimal(sizes[fullest])} of the {decimal(sum(sizes.values()))} on {len(sizes)} parameter "
        f"servers, {found.max_over_mean:.1f} times the mean; the largest variable there is {largest}. All workers wait "
        "for it: partitioner=min_size cuts large variables, and psrun plan shows what is where"
    ]


def check_rows(placed: Iterable[Placed], num_shards: int, *, stacked: Container[str] = ()) -> None:
    """Raises ConfigError if the largest variable has fewer rows than `num_shards`: sharding would be useless.

    Args:
      stacked: variables that are cut in another way, whatever `num_shards` is.
    """
    shards = [shard for shard in placed if shard.kind == "model" and shard.variable_shape]
    if not shards:
        return
    largest = _largest(shards)[0]
    rows = next(shard.variable_shape[0] for shard in shards if shard.variable == largest)
    if largest not in stacked and rows < num_shards:
        message = f"is {num_shards}, more than the {rows} rows of {largest}, the largest variable; use fewer shards"
        raise ConfigError([Problem("partitioner.num_shards", message)])


def _largest(placed: Iterable[Placed]) -> tuple[str, int]:
    """The name and the bytes of the largest variable."""
    sizes: Counter[str] = Counter()
    for shard in placed:
        sizes[shard.variable] += shard.bytes
    return sizes.most_common(1)[0]


def check_memory(placed: Iterable[Placed], memory_bytes: int) -> None:
    """Raises ConfigError if model and optimizer do not fit into the memory of the machine that all tasks share."""
    shards = [shard for shard in placed if shard.kind in ("model", "optimizer")]
    bytes_by_task = balance(shards).bytes_by_task
    total = sum(bytes_by_task.values())
    if total <= memory_bytes:
        return
    largest, largest_bytes = _largest(shards)
    tasks = ", ".join(f"{task} {size:,}" for task, size in bytes_by_task.items())
    message = (
        f"has variables of {total:,} bytes, including the slots of the optimizer ({tasks}; the largest is {largest}, "
        f"{largest_bytes:,}), more than the {memory_bytes:,} bytes of memory of this machine, which all tasks share; "
        "use a smaller table, or several machines with cluster=static or tf_config"
    )
    raise ConfigError([Problem("model", message)])


def with_fewer_rows(placed: Iterable[Placed], num_shards: int, *, stacked: Container[str] = ()) -> list[str]:
    """Model variables with rows, but fewer than `num_shards`; without those that are cut in another way."""
    model = {shard.variable: shard.variable_shape for shard in placed if shard.kind == "model"}
    return [name for name, shape in model.items() if shape and shape[0] < num_shards and name not in stacked]


def observed(kind: str, variables: Iterable) -> list[Placed]:
    """The shards of `variables`: plain variables, shards (named '.../part_N'), and ShardedVariables."""
    entries = [entry for variable in variables for entry in _numbered(variable)]
    rows: dict[str, int] = {}
    for name, number, shape, _ in entries:
        if number is not None:  # variables in one piece may share a name
            rows[name] = rows.get(name, 0) + shape[0]
    placed = []
    for name, number, shape, shard in entries:
        task = task_of(shard.device)
        size_bytes = math.prod(shape) * shard.dtype.size
        whole_shape = shape if number is None else (rows[name], *shape[1:])
        placed.append(Placed(name, number or 0, task, size_bytes, kind, whole_shape, shard.dtype.name))
    return placed


def _numbered(variable: Any) -> Iterator[tuple[str, int | None, tuple[int, ...], Any]]:
    """Name, number, shape and shard of each shard of a variable; the number of a variable in one piece is None."""
    shards = getattr(variable, "variables", None)
    if shards:  # shards of a variable without a name have the same name
        for number, shard in enumerate(shards):
            yield split_name(shard.name)[0], number, shape_of(shard), shard
    else:
        name, number = split_name(variable.name)
        is_shard = variable.name.partition(":")[0] != name
        yield name, number if is_shard else None, shape_of(variable), variable


def shape_of(variable: Any) -> tuple[int, ...]:
    """The shape of a variable; if its size may change, the shape of its value."""
    shape = variable.shape if variable.shape.is_fully_defined() else variable.read_value().shape
    return tuple(shape)


def task_of(device: str) -> str:
    """The task of a device: "ps-1" of "/job:ps/replica:0/task:1/device:CPU:0"; the chief for a device without a job."""
    match = re.search(r"/job:(?P<job>ps|worker|chief)/.*task:(?P<index>\d+)", device or "")
    return f"{match['job']}-{match['index']}" if match else CHIEF


def server_device(index: int) -> str:
    """The processor of a parameter server, whose task `task_of` tells."""
    return f"/job:ps/replica:0/task:{index}/device:CPU:0"


# A placement rule: from the bytes of the shards of a new variable, the bytes that each parameter server holds, and the
# number of shards placed before, the index of the server for the first shard. The other shards go to the next servers.
Rule = Callable[[Sequence[int], Sequence[int], int], int]


def greedy(sizes: Sequence[int], held_bytes: Sequence[int], num_placed: int) -> int:
    """The first server for which the servers that get a shard are then the least full.

    It compares the fullest of them, then the next fullest, and so on; ties go to the first server. Comparing only the
    fullest would place every variable with equally many shards on the same servers.
    """

    def fullest_first(first: int) -> list[int]:
        added_bytes: Counter[int] = Counter()
        for shard, size in enumerate(sizes):
            added_bytes[(first + shard) % len(held_bytes)] += size
        return sorted((held_bytes[index] + size for index, size in added_bytes.items()), reverse=True)

    return min(range(len(held_bytes)), key=fullest_first)


def round_robin(sizes: Sequence[int], held_bytes: Sequence[int], num_placed: int) -> int:
    """The next server in turn, whatever the sizes: TensorFlow's default."""
    return num_placed % len(held_bytes)


RULES: dict[str, Rule] = {"greedy": greedy, "round_robin": round_robin}


class Servers:
    """The contents of the parameter servers of a cluster, as a rule places variables."""

    def __init__(self, num_ps: int, rule: Rule) -> None:
        self.held_bytes = [0] * num_ps
        self._rule = rule
        self._num_placed = 0

    def take(self, sizes: Sequence[int]) -> int:
        """Places a new variable with shards of these sizes in bytes; returns the server of the first shard."""
        first = self._rule(sizes, tuple(self.held_bytes), self._num_placed) % len(self.held_bytes)
        for shard, size in enumerate(sizes):
            self.add((first + shard) % len(self.held_bytes), size)
        self._num_placed += len(sizes)
        return first

    def add(self, index: int, size: int) -> None:
        """Counts the bytes of a slot, which is on the server of its variable."""
        self.held_bytes[index] += size


def shard_rows(rows: int, num_shards: int) -> list[int]:
    """Rows of each shard of a variable sharded along its first axis; the first shards have the remaining rows."""
    count = max(1, min(num_shards, rows))
    return [rows // count + (shard < rows % count) for shard in range(count)]


def shard_bytes(shape: Sequence[int], value_bytes: int, num_shards: int) -> list[int]:
    """Bytes of each shard of a variable sharded along its first axis."""
    row_bytes = math.prod(shape[1:]) * value_bytes
    return [rows * row_bytes for rows in shard_rows(shape[0] if shape else 1, num_shards)]


@dataclass(frozen=True)
class Planned:
    """A variable to create.

    Attributes:
      value_bytes: of one value.
      kind: as in `Placed`.
      beside: the variable of a slot.
      whole: whether it is in one piece, whatever the partitioner.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    value_bytes: int
    kind: str
    beside: str | None = None
    whole: bool = False


def predicted(
    variables: Iterable[Planned], *, num_ps: int, num_shards: Callable[[Planned], int] | None, rule: Rule = greedy
) -> list[Placed]:
    """The predicted placement of `variables`, created in this order, under `psrun.cluster.strategy`.

    A slot goes to the server of its variable. Source: `ParameterServerStrategyV2Extended._create_variable` of
    TensorFlow 2.21; a test compares the two.

    Args:
      num_ps: 0 if everything is in one process.
      num_shards: number of shards of a variable (at most its rows); None for no partitioner.
    """
    placed: list[Placed] = []
    held_by: dict[str, list[int]] = {}
    servers = Servers(max(1, num_ps), rule)
    for variable in variables:
        if variable.beside is not None and variable.beside in held_by:
            indices = held_by[variable.beside] if variable.shape else held_by[variable.beside][:1]
            sizes = shard_bytes(variable.shape, variable.value_bytes, len(indices))
            for index, size in zip(indices, sizes):
                servers.add(index, size)
        else:
            may_split = num_ps and variable.shape and not variable.whole
            count = num_shards(variable) if num_shards and may_split else 1
            sizes = shard_bytes(variable.shape, variable.value_bytes, count)
            first = servers.take(sizes)
            indices = [(first + i) % len(servers.held_bytes) for i in range(len(sizes))]
        held_by[variable.name] = indices
        for shard, (index, size) in enumerate(zip(indices, sizes)):
            task = f"ps-{index}" if num_ps else CHIEF
            placed.append(Placed(variable.name, shard, task, size, variable.kind, variable.shape, variable.dtype))
    return placed


def spread(whole_bytes: int, shards: Sequence[Placed]) -> dict[str, int]:
    """Splits the bytes moved for a variable among the tasks of its shards: in proportion to rows, with an exact sum."""
    by_task: dict[str, int] = {}
    total = sum(shard.bytes for shard in shards)
    before = 0
    for shard in shards:
        until = before + shard.bytes
        share = whole_bytes * until // total - whole_bytes * before // total if total else 0
        by_task[shard.task] = by_task.get(shard.task, 0) + share
        before = until
    return by_task
