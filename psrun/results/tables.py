"""Tables of a run on the console: variables and their placement, features, tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from psrun.cluster.placement import Balance, Placed, balance
from psrun.results.system_usage import Rates

_FOLDED_FROM = 5  # equal rows of tasks


def placement_table(placed: Sequence[Placed], title: str, *, most: int = 24) -> Group:
    """Each variable with its shards, and the balance of the tasks."""
    rows: dict[tuple[str, str], list[Placed]] = {}
    for shard in placed:
        rows.setdefault((shard.kind, shard.variable), []).append(shard)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading, justify in (("variable", "left"), ("shape", "left"), ("shards on", "left"), ("size", "right")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    shown = sorted(rows.items(), key=lambda item: -sum(shard.bytes for shard in item[1]))
    for (kind, variable), shards in shown[:most]:
        style = None if kind == "model" else "dim"
        shape = "x".join(map(str, shards[0].variable_shape)) or "scalar"
        tasks = " ".join(task for (task,) in folded([(shard.task,) for shard in shards]))
        table.add_row(variable, shape, tasks, decimal(sum(shard.bytes for shard in shards)), style=style)
    rest = [Text(f"and {len(shown) - most} smaller ones", style="dim")] if len(shown) > most else []
    return Group(table, *rest, _balance_line(balance(placed)))


def feature_table(rows: Sequence[Mapping[str, Any]], title: str) -> Group:
    """One row per feature of a table of examples; notes under examples."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    every = ("feature", "dtype", "ids", "values", "missing", "examples")
    keys = [key for key in every if key == "examples" or any(row[key] for row in rows)]
    for key in keys:
        justify: Any = "right" if key == "values" else "left"
        table.add_column(key, justify=justify, overflow="fold", no_wrap=key in ("dtype", "values"))
    for row in rows:
        cells: dict[str, RenderableType] = {key: Text(f"{row[key]:,}" if key == "values" else row[key]) for key in keys}
        examples = [Text(row["examples"], no_wrap=True, overflow="ellipsis")] if row["examples"] else []
        note = [Text(row["note"], style="italic")] if row["note"] else []
        cells["examples"] = Group(*examples, *note)
        table.add_row(*cells.values(), style="dim" if row["dtype"] == "omitted" else None)
    return Group(Text(title, style="italic"), table)


def features_guessed(rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> tuple[RenderableType, ...]:
    """The table of inferred features, if there are any, and what else was decided about the data."""
    table = (feature_table(rows, "Inferred features (data.features=null)"),) if rows else ()
    return *table, *map(Text, notes)


def folded(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows of tasks, in which a run of five or more tasks of a job with equal cells is one row.

    Args:
      rows: the name of the task, such as worker-0, and the other cells.
    """
    runs: list[list[tuple[str, ...]]] = []
    for row in rows:
        if runs and _follows(runs[-1][-1], row):
            runs[-1].append(row)
        else:
            runs.append([row])
    together: list[tuple[str, ...]] = []
    for run in runs:
        if len(run) < _FOLDED_FROM:
            together += run
        else:
            together.append((f"{run[0][0]} to {run[-1][0]}", *run[0][1:]))
    return together


def _by_number(item: tuple[str, Any]) -> tuple[str, int]:
    """The order of tasks: ps-2 before ps-10."""
    job, _, index = item[0].rpartition("-")
    return (job, int(index)) if index.isdigit() else (item[0], 0)


def _follows(row: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Whether `after` is the row of the next task of the same job, and equal otherwise."""
    job, _, index = row[0].rpartition("-")
    return index.isdigit() and after[0] == f"{job}-{int(index) + 1}" and row[1:] == after[1:]


def _balance_line(task_balance: Balance) -> Text:
    sizes = [(task, decimal(size)) for task, size in sorted(task_balance.bytes_by_task.items(), key=_by_number)]
    parts = ", ".join(f"{task} {size}" for task, size in folded(sizes))
    uneven = (
        f"; the maximum is {task_balance.max_over_mean:.2f} times the mean"
        if len(task_balance.bytes_by_task) > 1
        else ""
    )
    return Text(f"total: {parts}{uneven}")


@dataclass(frozen=True)
class TaskRow:
    """The state of a task of a cluster, as far as it is known.

    Attributes:
      rates: of the last second; None if they are not known.
      heard_s: seconds since its last heartbeat; None before the first.
    """

    name: str
    state: str
    restarts: int
    memory_bytes: int | None
    rates: Rates | None
    heard_s: float | None


def task_table(rows: Sequence[TaskRow]) -> Table:
    """One row per task."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("task", "state", "restarts", "memory", "CPU", "network in, out", "last heartbeat"):
        table.add_column(heading, justify="left" if heading in ("task", "state") else "right")
    for row in rows:
        memory = "-" if row.memory_bytes is None else decimal(row.memory_bytes)
        rates = row.rates
        processor = "-" if rates is None else f"{rates.cpu_percent:.0f} %"
        network = "-" if rates is None else f"{_per_s(rates.received_bytes_per_s)}, {_per_s(rates.sent_bytes_per_s)}"
        heard = "-" if row.heard_s is None else f"{row.heard_s:.1f} s ago"
        table.add_row(row.name, row.state, str(row.restarts), memory, processor, network, heard)
    return table


def _per_s(rate: float) -> str:
    return f"{decimal(round(rate))}/s"
