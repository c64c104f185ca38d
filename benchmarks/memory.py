"""What a large table takes in each process: the most memory that each task of a cluster held, with and without it.

    python benchmarks/memory.py [--rows N] [--dim N] [--optimizer NAME] [--model clicks_table|clicks] [--json FILE]

Goals: chief and workers do not grow, each parameter server by its share of table and slots and at most a fifth more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
MOST_OVER_SHARE = 1.2
MOST_GROWTH_MIB = 200.0
SMALL_ROWS = 1000
MIB = 2**20
TASKS = ("chief-0", "worker-0", "worker-1", "ps-0", "ps-1")
_POLL_S = 0.05


def most_held(rows: int, options: argparse.Namespace) -> tuple[dict[str, float], dict[str, float]]:
    """The largest resident set of each task in a short run, and what the placement says that it holds; in MiB."""
    with tempfile.TemporaryDirectory(prefix="psrun-memory-") as folder:
        command = [
            *(sys.executable, "-m", "psrun", "--config-dir", str(HERE / "conf"), "cluster=local"),
            *("cluster.num_workers=2", "cluster.num_ps=2", "partitioner=fixed_shards", f"model={options.model}"),
            *(f"data.rows={rows}", f"model.dim={options.dim}", f"optimizer={options.optimizer}", "evaluation=none"),
            *("checkpoint=none", "trainer.epochs=1", "trainer.steps_per_epoch=20", "data.num_examples=8192"),
            *("data.num_eval_examples=16", f"hydra.run.dir={folder}/run"),
        ]
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        most: dict[str, float] = {}
        while process.poll() is None:
            for task in TASKS:
                try:
                    pid = json.loads((Path(folder) / "run" / ".tasks" / f"{task}.json").read_text())["pid"]
                    resident_mib = psutil.Process(pid).memory_info().rss / MIB
                except (OSError, ValueError, psutil.NoSuchProcess):
                    continue
                most[task] = max(most.get(task, 0.0), resident_mib)
            time.sleep(_POLL_S)
        result = json.loads((Path(folder) / "run" / "run.json").read_text(encoding="utf-8"))
    if result["status"] != "completed":
        raise RuntimeError(f"the run ended as {result['status']}: {result['error']}")
    share = dict.fromkeys(TASKS, 0.0)
    for row in result["placement"]:
        share[row["task"]] += row["bytes"] / MIB
    return most, share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--optimizer", default="sparse_adagrad")
    parser.add_argument("--model", default="clicks_table")
    parser.add_argument("--json", type=Path, help="file for every figure")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    small, _ = most_held(SMALL_ROWS, options)
    large, share = most_held(options.rows, options)
    table = Table("task", "small table", f"{options.rows:,} x {options.dim}", "grows by", "share", "", box=None)
    record = {}
    for task in TASKS:
        grown = large[task] - small[task]
        met = grown <= (MOST_OVER_SHARE * share[task] if task.startswith("ps") else MOST_GROWTH_MIB)
        figures = {"small_mib": small[task], "large_mib": large[task], "grown_mib": grown, "share_mib": share[task]}
        record[task] = figures
        table.add_row(task, *(f"{value:,.0f} MiB" for value in figures.values()), "met" if met else "missed")
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
