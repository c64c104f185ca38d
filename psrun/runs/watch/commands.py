"""`psrun watch FOLDER`: a run or a sweep while it runs, or afterwards; Ctrl-C ends only the view."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

from rich.console import Console

from psrun.errors import ConfigError, ExitCode
from psrun.results import run_folder, run_state
from psrun.results.console import wide_unless_terminal
from psrun.runs.sweeps.sweep import RECORD
from psrun.runs.watch.run import EVERY_S, RunView
from psrun.runs.watch.sweep import SweepView


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun watch ARGUMENTS`.

    Returns:
      The exit code of the run; for a sweep 0 if all jobs completed or were pruned by its search, else 1.

    Raises:
      ConfigError: there is no run in the folder, no job of the sweep has the metric, or there is nothing to compare.
      PsrunError: a run ended without recording a status, or cannot be read.
      KeyboardInterrupt: Ctrl-C, or SIGTERM.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # restores the cursor, which a live view hides
    console = wide_unless_terminal(Console(highlight=False))
    folder, runs = _awaited(str(options.folder), options.wait)
    if runs == [folder] and (options.metric or options.mode):
        raise ConfigError(f"--metric and --mode compare the jobs of a sweep; {options.folder} holds a single run")
    name = run_folder.read_name(folder)
    if name:
        console.print(name, style="dim", markup=False, soft_wrap=True)
    try:
        if runs == [folder]:
            return RunView(folder, console, wait_s=options.wait).follow()
        return SweepView(folder, console, metric=options.metric, mode=options.mode).follow()
    except KeyboardInterrupt:
        console.print("stopped watching; the run continues", style="dim")
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="psrun watch",
        description=f"Shows {__doc__.partition(': ')[2]}",
        epilog="Exits when the run ends, with its exit code; for a sweep with 0 if all jobs are completed, or pruned.",
    )
    parser.add_argument(
        "folder", type=Path, help="a run, a sweep, or a folder of several, such as runs/; a run also by its name"
    )
    parser.add_argument("--metric", metavar="NAME", help="metric that ranks the jobs of a sweep, such as val_auc")
    text = "the best value of the metric; default: min for losses and errors, max for others"
    parser.add_argument("--mode", choices=("min", "max"), help=text)
    text = "how long to wait for a run to start (default 0)"
    parser.add_argument("--wait", type=_seconds, default=0.0, metavar="SECONDS", help=text)
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return value


def _awaited(word: str, wait_s: float) -> tuple[Path, list[Path]]:
    """The folder that a word means and the runs in it, once there are any. Raises ConfigError if there are none."""
    deadline_s = time.monotonic() + wait_s
    while True:
        began_s = time.monotonic()
        folder = run_state.find_named(word) or Path(word).expanduser()
        if os.path.isdir(folder):
            here = folder.resolve()
            runs = list(run_state.below(here))
            if runs or os.path.exists(here / RECORD):
                return here, runs
        if time.monotonic() >= deadline_s:
            break
        time.sleep(max(min(EVERY_S, wait_s), 5 * (time.monotonic() - began_s)))  # names are sought in all runs
    waited = f" after {wait_s:.0f} s" if wait_s else "; --wait SECONDS waits for one"
    raise ConfigError(f"there is no run in {run_state.resolve(word)} or below it{waited}")
