"""How long a local cluster takes to start and to get well again, and what is left while a worker is gone.

    python benchmarks/recovery.py [--repetitions N] [--json FILE]

Each repetition is one `psrun cluster=local` of two workers and two parameter servers with a small model, to which it
does one thing after the other. Times are read from the events and heartbeats of the run, which come every half second,
and count from the moment of the signal to the first step that is done once the task is back. A second run holds the
restart of a worker back, and compares the epochs before and while it is gone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "harness"))
from fault_injection import Cluster

DEADLINE_S = 10.0  # cluster.restart.heartbeat_timeout_s, the default
CLUSTER = (
    "cluster=local", "partitioner=fixed_shards", "evaluation=none", "trainer.epochs=100000",
    "trainer.steps_per_epoch=100",
)  # fmt: skip
# What it is called, the task, the signal, and the goal in seconds on an idle machine of two cores.
_FAULTS = (
    ("worker killed", "worker-1", "kill", 5.0),
    ("ps killed", "ps-0", "kill", 15.0),
    ("chief killed", "chief-0", "kill", 15.0),
    ("worker hangs", "worker-0", "stop", DEADLINE_S + 5.0),
)
_START = "start to first step"
_ONE_LEFT = "steps/s with one of two workers, ratio"
_EPOCHS = 10


def _now_s(cluster: Cluster) -> float:
    """Seconds since the run started, on the clock of its events."""
    return time.time() - cluster.result["started_s"]


def recovers(cluster: Cluster, task: str, signal: str) -> float:
    """Does something to a task; seconds until the first step after it was replaced."""
    count = len(cluster.events("recovery"))
    cluster.wait_for("checkpoint", len(cluster.events("checkpoint")) + 2)
    at_s = _now_s(cluster)
    getattr(cluster, signal)(task)
    return cluster.wait_for("recovery", count + 1)["wall_s"] - at_s


def _rate(cluster: Cluster) -> float:
    """Median steps per second of the next epochs."""
    num_epochs = len(cluster.events("epoch")) + 1
    cluster.wait_for("epoch", num_epochs + _EPOCHS)
    return statistics.median(
        event["steps_per_s"] for event in cluster.events("epoch")[num_epochs : num_epochs + _EPOCHS]
    )


def _one(root: Path) -> dict[str, float]:
    figures: dict[str, float] = {}
    began_s = time.monotonic()
    cluster = Cluster(root, *CLUSTER, "cluster.restart.backoff_s=0")
    try:
        cluster.wait_for_step(1)
        figures[_START] = time.monotonic() - began_s
        for name, task, signal, _ in _FAULTS:
            figures[name] = recovers(cluster, task, signal)
    finally:
        cluster.close()
    (root / "held back").mkdir()
    cluster = Cluster(
        root / "held back", *CLUSTER, "cluster.restart.backoff_s=600", "cluster.restart.max_backoff_s=600"
    )
    try:
        recovers(cluster, "worker-1", "kill")  # the first restart waits for nothing
        both = _rate(cluster)
        cluster.kill("worker-1")
        figures[_ONE_LEFT] = _rate(cluster) / both
    finally:
        cluster.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for every measurement")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    runs: list[dict[str, float]] = []
    for _ in range(options.repetitions):
        with tempfile.TemporaryDirectory(prefix="psrun-recovery-") as root:
            runs.append(_one(Path(root)))
        console.print("  ".join(f"{name} {value:.2f}" for name, value in runs[-1].items()))
    goals: dict[str, Any] = {name: f"{goal:.0f} s" for name, _, _, goal in _FAULTS}
    table = Table("", "median (least to most)", "goal", box=None, pad_edge=False)
    for name in runs[0]:
        values = [run[name] for run in runs]
        shown = f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        table.add_row(name, shown, goals.get(name, ""))
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
