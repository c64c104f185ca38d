"""Tables on the console."""

from __future__ import annotations

import io

from rich.console import Console

from psrun.cluster.placement import Placed
from psrun.results import tables


def test_equal_rows_of_the_tasks_of_a_job_are_one_row():
    workers = [(f"worker-{index}", "0 bytes", "1 kB") for index in range(12)]
    others = [("chief-0", "1 kB", ""), *((f"ps-{index}", "2 kB", "1 kB") for index in range(4))]
    assert tables.folded([*others, *workers]) == [*others, ("worker-0 to worker-11", "0 bytes", "1 kB")]
    workers[6] = ("worker-6", "7 bytes", "1 kB")
    assert [row[0] for row in tables.folded(workers)] == ["worker-0 to worker-5", "worker-6", "worker-7 to worker-11"]
    assert tables.folded([("a b", "1")] * 7) == [("a b", "1")] * 7  # no tasks with numbers
    assert tables.folded([]) == []


def test_the_shards_of_a_variable_on_many_parameter_servers_are_one_range():
    placed = [Placed("table", shard, f"ps-{shard}", 1000, "model", (200, 2), "float32") for shard in range(100)]
    console = Console(file=io.StringIO(), width=100)
    console.print(tables.placement_table(placed, "Placement"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "ps-0 to ps-99" in text
    assert "total: ps-0 to ps-99 1.0 kB; the maximum is 1.00 times the mean" in text
