"""What a checkpoint of a large table costs: the pause of the training, time, bandwidth beside plain copies, memory.

    python benchmarks/checkpoint.py [--rows N] [--repetitions N] [--folder FOLDER] [--json FILE]

Each repetition is one `psrun cluster=local` of one worker and two parameter servers with a table of N x 16 float32
(1 GiB) and an Adagrad accumulator of the same size, which takes a few checkpoints; then the same run resumed; then
`psrun checkpoint verify`, `export` and `import`. Between them the files of a checkpoint are copied on the same disk,
and as many bytes in memory. An import is compared with a copy that is on disk, an export with one that need not be. The
memory of the chief and of a parameter server is read every 20 ms; it reports the most while a checkpoint is saved or
restored less what it was right before. The training pauses while the servers copy their tables in memory; epochs are
longer than a save, so that no save waits for the one before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "harness"))
from fault_injection import Cluster

from psrun import files

BENCHMARKS = Path(__file__).parent
_MIB = 1 << 20
_COPY = "copy that is on disk, s"
_IN_MEMORY = "copy in memory, s"
_PAUSE = "pause of the training, s"
_COPIES = 5
_WITHIN_S = 300.0
_SAMPLE_S = 0.02
COMMON = (
    "--config-dir", str(BENCHMARKS / "conf"), "model=big_table", "cluster=local", "cluster.num_workers=1",
    "cluster.num_ps=2", "partitioner=fixed_shards", "partitioner.num_shards=2", "evaluation=none",
    "checkpoint.max_to_keep=1",
)  # fmt: skip


class Memory:
    """Resident bytes of a task over time, on the clock of `time.time`."""

    def __init__(self, cluster: Cluster, task: str) -> None:
        self._process = cluster.task(task)
        self._samples: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            try:
                self._samples.append((time.time(), self._process.memory_info().rss))
            except psutil.NoSuchProcess:
                return

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def growth(self, began_s: float, ended_s: float) -> float:
        """MiB, from right before to the most between two times."""
        before = [size for at, size in self._samples if at < began_s][-1]
        return (max(size for at, size in self._samples if began_s <= at <= ended_s) - before) / _MIB


def _run(root: Path, *arguments: str) -> tuple[Cluster, Memory, Memory]:
    """The run, and the memory of its chief and of a parameter server."""
    cluster = Cluster(root, *COMMON, *arguments, PYTHONPATH=str(BENCHMARKS))
    try:
        chief = Memory(cluster, "chief-0")
        server = Memory(cluster, "ps-0")
        code = cluster.end(within_s=_WITHIN_S)
        chief.stop()
        server.stop()
    finally:
        cluster.close()
    assert code == 0, cluster.stderr
    return cluster, chief, server


def _span(cluster: Cluster, event: dict) -> tuple[float, float]:
    """Start and end of the operation that the event reports, as of `time.time`."""
    ended_s = cluster.result["started_s"] + event["wall_s"]
    return ended_s - event["seconds"], ended_s


def _copied(sources: list[Path], folder: Path) -> tuple[float, float]:
    """Seconds to copy the files, and to copy them and have them on disk."""
    folder.mkdir()
    began_s = time.monotonic()
    copies = [Path(shutil.copyfile(file, folder / file.name)) for file in sources]
    copied_s = time.monotonic() - began_s
    for copy in copies:
        files.sync(copy)
    synced_s = time.monotonic() - began_s
    shutil.rmtree(folder)
    return copied_s, synced_s


def _command(*arguments: str) -> tuple[float, float]:
    """Seconds of `psrun checkpoint ...`, and the most memory that it held, in MiB."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "psrun", "checkpoint", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"psrun checkpoint {' '.join(arguments)} failed"
    return time.monotonic() - began_s, usage.ru_maxrss / 1024


def _copied_in_memory(size: int) -> float:
    """Seconds to copy so many bytes to memory that this process has, the median."""
    source: np.ndarray = np.ones(size, np.uint8)
    target = source.copy()
    seconds = []
    for _ in range(_COPIES):
        began_s = time.monotonic()
        np.copyto(target, source)
        seconds.append(time.monotonic() - began_s)
    return statistics.median(seconds)


def _one(root: Path, rows: int, steps: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    options = (f"model.rows={rows}", f"trainer.steps_per_epoch={steps}")
    cluster, memory, server = _run(root, *options, "trainer.epochs=6")
    # The first one finds no file to remove, and is the first use of the memory of the copy. No step runs at the last.
    first, *saves, _ = cluster.events("checkpoint")
    sources = sorted((cluster.folder / "checkpoints").glob("ckpt-*"))
    size = sum(file.stat().st_size for file in sources)
    figures["bytes"] = size
    figures[_PAUSE] = statistics.median(event["pause_s"] for event in saves)
    figures["save, while the training goes on, s"] = statistics.median(event["seconds"] for event in saves)
    figures["chief grows in a save, MiB"] = max(memory.growth(*_span(cluster, event)) for event in saves)
    figures["a server grows in the first save, MiB"] = server.growth(*_span(cluster, first))
    figures["a server grows in a later save, MiB"] = max(server.growth(*_span(cluster, event)) for event in saves)
    figures["copy, s"], figures[_COPY] = _copied(sources, root / "copy")
    resumed, memory, _ = _run(root, "trainer.epochs=7", f"resume='{cluster.folder}'")
    restored = resumed.events("restored")[-1]
    figures["restore, all of it verified first, s"] = restored["seconds"]
    figures["chief grows in a restore, MiB"] = memory.growth(*_span(resumed, restored))
    figures["psrun checkpoint verify, s"], figures["verify holds at most, MiB"] = _command(
        "verify", str(cluster.folder)
    )
    newest = sorted((cluster.folder / "checkpoints").glob("ckpt-*"))
    copied_s, _ = _copied(newest, root / "copy")
    exported, back = str(root / "exported"), str(root / "back")
    seconds, figures["export holds at most, MiB"] = _command("export", str(cluster.folder), "--to", exported)
    figures["psrun checkpoint export, s"] = seconds
    figures["copy / export"] = copied_s / seconds
    _, synced_s = _copied(newest, root / "copy")
    seconds, figures["import holds at most, MiB"] = _command("import", exported, "--to", back)
    figures["psrun checkpoint import, s"] = seconds
    figures["copy that is on disk / import"] = synced_s / seconds
    figures[_IN_MEMORY] = _copied_in_memory(size)  # last: a process that is started has the most of this one
    figures["pause / copy in memory"] = figures[_PAUSE] / figures[_IN_MEMORY]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1 << 24)
    parser.add_argument("--steps", type=int, default=2000, help="steps of an epoch, which takes longer than a save")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to put the runs (default: the folder for temporary files)")
    parser.add_argument("--json", type=Path, help="file for every measurement")
    options = parser.parse_args()
    console = Console(highlight=False, width=140)
    runs = []
    for _ in range(options.repetitions):
        with tempfile.TemporaryDirectory(prefix="psrun-checkpoint-", dir=options.folder) as root:
            runs.append(_one(Path(root), options.rows, options.steps))
        console.print("  ".join(f"{name} {value:.2f}" for name, value in runs[-1].items()))
    table = Table("", "median (least to most)", "MB/s", "of that of the copy on disk", box=None, pad_edge=False)
    size = runs[0]["bytes"]
    for name in runs[0]:
        values = [run[name] for run in runs]
        middle = statistics.median(values)
        rate = ratio = ""
        if name.endswith(" s"):
            rate = f"{size / middle / 1e6:,.0f}"
            ratio = f"{statistics.median(run[_COPY] / run[name] for run in runs):.2f}"
        table.add_row(name, f"{middle:,.2f} ({min(values):,.2f} to {max(values):,.2f})", rate, ratio)
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
