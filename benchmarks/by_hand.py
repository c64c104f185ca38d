"""Common code of the programs that train the clicks model without psrun: options, timed windows. No TensorFlow."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Steps = Callable[[int], None]  # does a number of steps


def parsed(description: str | None, kinds: Sequence[str]) -> argparse.Namespace:
    """The options of the command line, with an empty list of `rates`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--num-ps", type=int, default=2)
    parser.add_argument("--optimizer", choices=("adagrad", "adam"), default="adagrad")
    parser.add_argument("--steps", type=int, default=200, help="steps of each window that is timed")
    parser.add_argument("--steps-per-execution", type=int, default=20, help="of packed, fit and local")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--report", type=Path, help="file for steps per second, one number a window")
    options = parser.parse_args()
    options.rates = []
    return options


def timed(train: Steps, options: argparse.Namespace) -> list[float]:
    """Steps a second of each window, after steps to warm up."""
    train(max(40, options.num_workers * options.steps_per_execution))
    rates, cpu_s = [], time.process_time()
    for _ in range(options.windows):
        began_s = time.monotonic()
        train(options.steps)
        rates.append(options.steps / (time.monotonic() - began_s))
    sys.stdout.write(f"cpu {(time.process_time() - cpu_s) / options.windows / options.steps * 1e3:.2f} ms/step ")
    return rates


def report(rates: Sequence[float], options: argparse.Namespace) -> None:
    """Prints the rates, and writes them to the file that the options name."""
    sys.stdout.write(f"{options.kind}: {statistics.median(rates):.1f} steps/s {[*rates]}\n")
    if options.report:
        options.report.write_text(json.dumps(rates), encoding="utf-8")
    sys.stdout.flush()
