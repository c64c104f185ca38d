"""The experiments of the field in full, one after the other, and a picture of the report of each.

    python benchmarks/experiments.py [NAME...] [--folder runs/experiments] [--pictures docs/img/experiments]

The commands of sweeps are those in the files under experiments/; of the cluster of `fault_drill` a worker and then a
parameter server are killed. Pictures are taken by Chromium (the test extra brings playwright).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measured import wait_for
from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console

FILES = Path(__file__).parents[1] / "experiments"
NAMES = (
    "scaling", "partitioners", "trainers", "baselines", "packing", "evaluations", "consistency", "stragglers",
    "staleness",
)  # fmt: skip
DRILL = "fault_drill"
_DATA = ("data", "synthesize", "criteo-synthetic", "--num-values", "100", "--num-examples")
_EXAMPLES = 400_000
_FEWER_EXAMPLES = {"stragglers": 100_000, "staleness": 100_000}
WIDTH = 1280
_SWEEP_FOLDER = "hydra.sweep.dir=runs/"
_COLOURS = 256
_WITHIN_S = 1800.0


def main() -> None:
    options = _options()
    folder, console = options.folder.absolute(), Console()
    folder.mkdir(parents=True, exist_ok=True)
    options.pictures.mkdir(parents=True, exist_ok=True)
    for name in options.names or (*NAMES, DRILL):
        console.rule(name)
        where = folder / str(_FEWER_EXAMPLES.get(name, _EXAMPLES))  # with the data that all runs of a size share
        where.mkdir(exist_ok=True)
        if not (where / _DATA[2]).exists():
            _psrun(*_DATA, where.name, folder=where)
        shutil.rmtree(where / name, ignore_errors=True)
        if name == DRILL:
            _drill(where)
        for runs, arguments in sweeps(name).items():
            _psrun(*arguments, f"hydra.sweep.dir={where / runs}", folder=where)
        page = folder / f"{name}.html"
        _psrun("report", name, "--html", str(page), folder=where)
        _picture(page, options.pictures / f"{name}.png")


def sweeps(name: str) -> dict[str, list[str]]:
    """The arguments of psrun for each sweep in the file of an experiment, by folder: below `runs` there."""
    text = (FILES / f"{name}.yaml").read_text(encoding="utf-8")
    found = {}
    for line in re.sub(r" \\\n# *", " ", text).splitlines():
        words = shlex.split(line.removeprefix("#"), comments=True)
        if words[:2] == ["psrun", "-m"]:
            (folder,) = (word for word in words if word.startswith(_SWEEP_FOLDER))
            found[folder.removeprefix(_SWEEP_FOLDER)] = [word for word in words[1:] if word != folder]
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join((*NAMES, DRILL))}")
    parser.add_argument("--folder", type=Path, default=Path("runs/experiments"), help="of runs and data")
    parser.add_argument("--pictures", type=Path, default=Path("docs/img/experiments"))
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in (*NAMES, DRILL)]
    if unknown:
        parser.error(f"no such experiment: {', '.join(unknown)}")
    return options


def _psrun(*arguments: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "psrun", *arguments], cwd=folder, check=True)


def _drill(folder: Path) -> None:
    """Runs the cluster; kills a worker once it trains, and a parameter server once that one is back."""
    run = folder / DRILL
    process = subprocess.Popen(
        [sys.executable, "-m", "psrun", f"experiment={DRILL}", f"hydra.run.dir={run}"], cwd=folder
    )
    try:
        _await(lambda: _beat(run, "chief-0").get("step"), process, "a step")
        for task in ("worker-1", "ps-0"):
            before = _recovered(run)
            os.kill(_beat(run, task)["pid"], signal.SIGKILL)
            _await(lambda: _recovered(run) > before, process, f"recovery from the loss of {task}")  # noqa: B023
        process.wait(_WITHIN_S)
    finally:
        process.terminate()
        process.wait()
    if process.returncode:
        raise SystemExit(f"{DRILL} ended with {process.returncode}")


def _beat(run: Path, task: str) -> dict[str, Any]:
    try:
        return json.loads((run / ".tasks" / f"{task}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _recovered(run: Path) -> int:
    return (run / "metrics.jsonl").read_text(encoding="utf-8").count('"event": "recovery"')


def _await(condition: Callable[[], object], process: subprocess.Popen, what: str) -> None:
    wait_for(condition, process, within_s=_WITHIN_S, otherwise=lambda: f"no {what}")


def _picture(page: Path, picture: Path) -> None:
    with sync_playwright() as started:
        # Chromium's own sandbox is not to be had in containers; the page is ours.
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": WIDTH, "height": 850})
        view.goto(page.as_uri())
        view.wait_for_selector("body[data-drawn=true]", timeout=60_000)
        view.screenshot(path=picture, full_page=True)
        browser.close()
    Image.open(picture).convert("RGB").quantize(_COLOURS).save(picture, optimize=True)


if __name__ == "__main__":
    main()
