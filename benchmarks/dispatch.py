"""Closures a second that TensorFlow's coordinator hands out when they have nothing to do, by hand and as psrun does it.

    python benchmarks/dispatch.py [--workers N ...] [--closures N] [--windows N] [--repetitions N] [--json FILE]

A process for each number of workers, which are servers inside it. By hand: a `tf.function` is scheduled without a
bound, and joined. psrun: the same as a concrete function, a few on their way for each worker. Both are timed in turns.
The goal: psrun hands out 1,000 a second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from measured import Summary, in_turns, run_python
from rich.console import Console
from rich.table import Table

LEAST_PER_S = 1000.0
WORKERS = (2, 8, 32)
KINDS = ("psrun", "by hand")
Windows = dict[str, list[float]]  # closures a second, by kind


def timed(workers: int, closures: int, windows: int) -> Windows:
    """Runs the cluster in this process."""
    from psrun import process
    from psrun.cluster import strategy
    from psrun.config import choices

    process.prepare()
    import tensorflow as tf

    from psrun.closures.training_closures import InFlightClosures

    cluster = choices.InProcess(kind="inprocess", num_workers=workers, num_ps=1, placement="greedy", isolate=False)
    strategy.prepare(cluster, None)
    distribution = strategy.connect(cluster, choices.NoPartitioner(kind="none"))
    coordinator = distribution.coordinator

    @tf.function
    def nothing() -> None:
        pass

    concrete, in_flight = nothing.get_concrete_function(), InFlightClosures(distribution)

    def by_hand(count: int) -> None:
        for _ in range(count):
            coordinator.schedule(nothing)
        coordinator.join()

    def psrun(count: int) -> None:
        for _ in range(count):
            in_flight.add(coordinator.schedule(concrete))
        in_flight.join()

    ways = {"psrun": psrun, "by hand": by_hand}
    for way in ways.values():
        way(20 * workers)
    rates: Windows = {kind: [] for kind in KINDS}
    for kinds in in_turns(KINDS, windows):
        for kind in kinds:
            began_s = time.monotonic()
            ways[kind](closures)
            rates[kind].append(closures / (time.monotonic() - began_s))
    return rates


def measure(workers: int, options: argparse.Namespace) -> Windows:
    """As `timed`, in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="psrun-dispatch-") as folder:
        report = Path(folder) / "rates.json"
        command = [str(Path(__file__).resolve()), "--workers", str(workers), "--report", str(report)]
        command += ["--closures", str(options.closures), "--windows", str(options.windows)]
        run_python(command, Path(folder))
        return json.loads(report.read_text(encoding="utf-8"))


def show(by_workers: dict[int, Windows], console: Console) -> dict[str, object]:
    """Prints what was found by number of workers; returns it as values that JSON knows."""
    columns = ("workers", "psrun, closures/s: median (least to most)", "by hand", "ratio", "goal: at least 1,000")
    table, summary = Table(*columns, box=None, pad_edge=False), {}
    for workers, windows in by_workers.items():
        ours, theirs = (Summary.of(windows[kind]) for kind in KINDS)
        ratio = Summary.of([a / b for a, b in zip(*(windows[kind] for kind in KINDS))])
        verdict = "met" if ours.median >= LEAST_PER_S else "missed"
        table.add_row(str(workers), ours.text(0), theirs.text(0), str(ratio), verdict)
        summaries = {"psrun": asdict(ours), "by hand": asdict(theirs), "ratio": asdict(ratio)}
        summary[str(workers)] = {"windows": windows, "summaries": summaries, "verdict": verdict}
    console.print(table)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--closures", type=int, default=4000, help="of each window that is timed")
    parser.add_argument("--windows", type=int, default=5, help="of each kind in a process")
    parser.add_argument("--repetitions", type=int, default=3, help="processes for each number of workers")
    parser.add_argument("--json", type=Path, help="file for every measurement and the medians")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)  # the process that is timed writes it
    options = parser.parse_args()
    if options.report:
        rates = timed(options.workers[0], options.closures, options.windows)
        options.report.write_text(json.dumps(rates), encoding="utf-8")
        end_at_once()
    console = Console(highlight=False, width=120)
    by_workers: dict[int, Windows] = {workers: {kind: [] for kind in KINDS} for workers in options.workers}
    for sizes in in_turns(options.workers, options.repetitions):
        for workers in sizes:
            for kind, rates in measure(workers, options).items():
                by_workers[workers][kind] += rates
                console.print(f"{workers} workers, {kind}: {Summary.of(rates).text(0)} closures/s")
    summary = show(by_workers, console)
    if options.json:
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def end_at_once() -> None:
    """Letting go of a coordinator the ordinary way takes up to a minute."""
    from psrun import process

    sys.stdout.flush()
    process.leave(0)


if __name__ == "__main__":
    main()
