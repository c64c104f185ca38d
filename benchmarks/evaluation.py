"""Examples a second of the ways to evaluate on two workers, beside one process, and what a killed worker costs.

    python benchmarks/evaluation.py [--repetitions N] [--examples N] [--json FILE]

Each repetition runs wide and deep on the generated features, in turn on `cluster=local` of two workers and two
parameter servers with evaluation=exact, distributed and direct, and on `cluster=none`; each evaluates after each of its
epochs. It reports the median time between an epoch's report and the evaluation's, of all but the first, which
traces. A last run with evaluation=exact loses a worker in the middle of an evaluation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "harness"))
from fault_injection import Cluster

_EPOCHS = 6
_WITHIN_S = 400.0
_LOCAL = ("cluster=local", "cluster.num_workers=2", "cluster.num_ps=2")
WAYS = {
    "exact, 2 workers": (*_LOCAL, "evaluation=exact"),
    "distributed, 2 workers": (*_LOCAL, "evaluation=distributed"),
    "direct, by the chief": (*_LOCAL, "evaluation=direct"),
    "one process": ("cluster=none", "evaluation=direct"),
}


def _start(root: Path, name: str, examples: int, *overrides: str) -> Cluster:
    folder = root / name.replace(" ", "_").replace(",", "")
    folder.mkdir()
    return Cluster(
        folder, "model=wide_deep", "data=features", f"data.num_eval_examples={examples}", f"trainer.epochs={_EPOCHS}",
        "trainer.steps_per_epoch=20", "checkpoint=none", *overrides,
    )  # fmt: skip


def _seconds(cluster: Cluster) -> list[float]:
    """Of each evaluation but the first."""
    ends = [event["wall_s"] for event in cluster.events("evaluation")]
    begins = [event["wall_s"] for event in cluster.events("epoch")]
    return [end - begin for begin, end in zip(begins, ends)][1:]


def _rate(root: Path, name: str, examples: int) -> float:
    cluster = _start(root, name, examples, *WAYS[name])
    try:
        assert cluster.end(within_s=_WITHIN_S) == 0, cluster.stderr
    finally:
        cluster.close()
    return examples / statistics.median(_seconds(cluster))


def _with_a_kill(root: Path, examples: int) -> float:
    """How many times longer an evaluation takes in which a worker is killed."""
    cluster = _start(root, "killed", examples, *WAYS["exact, 2 workers"], "cluster.restart.backoff_s=0")
    try:
        cluster.wait_for("epoch", 4, within_s=_WITHIN_S)
        cluster.kill("worker-1")
        assert cluster.end(within_s=_WITHIN_S) == 0, cluster.stderr
    finally:
        cluster.close()
    seconds = _seconds(cluster)
    assert all(event["examples_seen"] == examples for event in cluster.events("evaluation"))
    return seconds[2] / statistics.median(seconds[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--examples", type=int, default=200_000)
    parser.add_argument("--json", type=Path, help="file for every measurement")
    options = parser.parse_args()
    console = Console(highlight=False, width=120)
    runs: list[dict[str, float]] = []
    for _ in range(options.repetitions):
        with tempfile.TemporaryDirectory(prefix="psrun-evaluation-") as root:
            rates = {name: _rate(Path(root), name, options.examples) for name in WAYS}
            rates["with a killed worker"] = _with_a_kill(Path(root), options.examples)
        runs.append(rates)
        console.print("  ".join(f"{name} {value:,.2f}" for name, value in rates.items()))
    table = Table("", "examples/s: median (all)", "of distributed", box=None, pad_edge=False)
    for name in WAYS:
        values = [run[name] for run in runs]
        ratio = statistics.median(run[name] / run["distributed, 2 workers"] for run in runs)
        table.add_row(
            name, f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})", f"{ratio:.2f}"
        )
    console.print(table)
    killed = [run["with a killed worker"] for run in runs]
    console.print(f"an evaluation in which a worker is killed takes {statistics.median(killed):.2f} times as long "
                  f"({min(killed):.2f} to {max(killed):.2f})")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
