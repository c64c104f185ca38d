"""How long `psrun list` takes over many run folders.

    python benchmarks/listing.py [--runs 2000] [--repetitions 5]

Makes run folders in a temporary folder, with the configuration of a real run, and lists them: all, and with a condition
and an order by keys of the configuration. Each time is that of the whole command, with the start of Python. Prints
medians, with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from measured import Summary
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from psrun import process
from psrun.config import compose

_EPOCHS = 10
_WITHIN_S = 1800


class Seconds(NamedTuple):
    """The time that a command takes, and the processor time of it."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="psrun-listing-") as folder:
        here = Path(folder)
        make_runs(here / "runs", options.runs)
        show(options.runs, measured(here, options.repetitions))


def make_runs(root: Path, number: int) -> None:
    """Writes run folders as completed runs leave them behind, with checkpoints of a few bytes."""
    raw = compose.values(compose.compose(["cluster=local", "model=embedding"]))
    text = OmegaConf.to_yaml(OmegaConf.create(raw))
    for index in range(number):
        folder = root / f"2026-01-01_00-00-00-embedding-{index:05d}"
        for name in ("logs", "checkpoints", "tensorboard"):
            (folder / name).mkdir(parents=True)
        seed = f"seed: {index % 10}"
        rate = f"learning_rate: {1 / (1 + index % 100)}"
        changed = text.replace(f"seed: {raw['seed']}", seed, 1)
        changed = changed.replace(f"learning_rate: {raw['optimizer']['learning_rate']}", rate, 1)
        (folder / "config.yaml").write_text(changed)
        (folder / "run.json").write_text(json.dumps(result(index), indent=2))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(event(epoch)) + "\n" for epoch in range(1, _EPOCHS)))
        (folder / "logs" / "chief-0.log").write_text("log\n" * 20)
        (folder / "checkpoints" / "ckpt-100.index").write_text("checkpoint")


def result(index: int) -> dict:
    """A run.json."""
    return {
        "status": "completed", "mode": "train", "exit_code": 0, "error": None, "overrides": [f"seed={index % 10}"],
        "started_s": 1.8e9 + index, "process": {"host": "here", "pid_namespace": 1, "pid": 1},
        "cluster": {"topology": "local", "num_workers": 2, "num_ps": 2}, "versions": {"psrun": "0.1.0"},
        "placement": [{"variable": "table", "shard": 0, "task": "ps-0", "bytes": 6400, "kind": "model"}] * 4,
        "metrics": {"loss": 0.5, "auc": 0.8, "val_loss": 0.4 + index / 1e6, "val_auc": 0.9},
        "steps": {"applied": 1000, "scheduled": 1000, "repeated": 0}, "steps_per_s": 100.0, "examples_per_s": 6400.0,
        "time_to_first_step_s": 3.0, "wall_s": 12.0, "recoveries": [],
        "checkpoints": [{"path": "checkpoints/ckpt-100", "step": 100, "good": True}],
    }  # fmt: skip


def event(epoch: int) -> dict:
    """A line of metrics.jsonl."""
    metrics = {"loss": 1.0 / epoch, "auc": 0.8}
    return {"event": "epoch", "step": 100 * epoch, "wall_s": 1.0 * epoch, "epoch": epoch, "metrics": metrics}


def measured(here: Path, repetitions: int) -> dict[str, list[Seconds]]:
    """Seconds of each way of listing."""
    condition = ["--where", "optimizer.learning_rate<0.02", "--sort", "-seed"]
    return {
        "all runs": [listed(here) for _ in range(repetitions)],
        "by keys of the configuration": [listed(here, *condition) for _ in range(repetitions)],
    }


def listed(here: Path, *arguments: str) -> Seconds:
    """What `psrun list` takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.monotonic()
    with open(os.devnull, "wb") as nowhere:
        subprocess.run(
            [*process.psrun_command(), "list", *arguments], cwd=here, stdout=nowhere, timeout=_WITHIN_S, check=True
        )
    wall_s = time.monotonic() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def show(number: int, times: dict[str, list[Seconds]]) -> None:
    table = Table(f"{number:,} runs", "seconds", "processor seconds", box=None)
    for what, seconds in times.items():
        table.add_row(what, str(Summary.of([each.wall for each in seconds])), str(Summary.of([s.cpu for s in seconds])))
    Console().print(table)


if __name__ == "__main__":
    main()
