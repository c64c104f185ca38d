"""Sweeps by the real command, of jobs that take no TensorFlow: a script stands in for what a job runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from process_tree import ProcessTree

# Fails where the seed is 13; where there are more than 100 epochs it runs until a signal ends it, or the file `go`
# exists; seed 99 kills itself; 17 requests a restart twice, 18 each time.
_JOB = """
import os, signal, sys, time
from pathlib import Path
from omegaconf import OmegaConf
from psrun import process
from psrun.results.run_folder import RunFolder

process.end_with_sweep()
folder = Path(sys.argv[1])
config = OmegaConf.load(folder / "config.yaml")
run = RunFolder(folder)
before = run.stored()
overrides = [each for each in OmegaConf.load(folder / ".hydra" / "overrides.yaml")]

def interrupted(signum, frame):
    error = {"message": "interrupted", "type": "I", "task": "chief-0"}
    run.record_at_once("ended", status="interrupted", exit_code=130, error=error)
    os._exit(130)

signal.signal(signal.SIGINT, interrupted)
run.record("begun", overrides=overrides, pid=os.getpid(), began_s=time.time(), resume=config.resume,
           times=before.get("times", 0) + 1)
print("printed to the terminal")
while config.trainer.epochs != "auto" and config.trainer.epochs > 100 and not (folder.parent / "go").exists():
    time.sleep(0.05)
if config.seed == 99:
    os.kill(os.getpid(), signal.SIGKILL)
if config.seed == 18 or config.seed == 17 and before.get("times", 0) < 2:
    error = {"message": "preempted", "type": "I", "task": "chief-0"}
    run.record("ended", status="interrupted", exit_code=175, error=error)
    sys.exit(175)
if config.seed == 13:
    error = {"message": "unlucky\\nand more", "type": "E", "task": "chief-0"}
    run.record("ended", status="failed", exit_code=1, error=error)
    sys.exit(1)
time.sleep(0.3)
run.record("ended", status="completed", exit_code=0, ended_s=time.time(), wall_s=0.5,
           metrics={"loss": 1.0 / config.seed, "val_auc": config.seed / 100})
"""
_INSTEAD = """
from psrun import process
import sys
process.task_command = lambda folder: [sys.executable, {script!r}, str(folder)]
command = process.module_command
process.module_command = lambda module, *more: (
    ["false"] if module == "psrun.roles.fork_server" else command(module, *more)  # each job starts alone
)
"""


def stood_in(root: Path) -> dict[str, str]:
    """The environment in which jobs are others than they would be."""
    script = root / "job.py"
    script.write_text(_JOB)
    (root / "sitecustomize.py").write_text(textwrap.dedent(_INSTEAD).format(script=str(script)))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}


class Sweep:
    """`psrun -m ...` under way, or ended, whose folder is `folder` below `root`; with `real` jobs or others instead."""

    def __init__(self, root: Path, *arguments: str, folder: str = "sweep", real: bool = False) -> None:
        self.folder, self.out = root / folder, root / f"{folder}.out"
        environment = dict(os.environ) if real else stood_in(root)
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "psrun", "-m", *arguments],
                cwd=root, stdout=out, stderr=out, env=environment, start_new_session=True,
            )  # fmt: skip
        self.tree = ProcessTree(self.process)

    @property
    def output(self) -> str:
        return self.out.read_text()

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "sweep.json").read_text())

    def results(self) -> dict[int, dict[str, Any]]:
        results = {}
        for file in self.folder.glob("*/run.json"):
            results[int(file.parent.name)] = json.loads(file.read_text())
        return results

    def wait(self, condition: Callable[[], Any], what: str, *, within_s: float = 60.0) -> Any:
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            self.tree.look()
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"no {what} within {within_s} s\n{self.output}")

    def wait_for_running(self, count: int) -> None:
        def running() -> bool:
            assert self.process.poll() is None, self.output
            return sum(result["status"] == "running" for result in self.results().values()) >= count

        self.wait(running, f"{count} jobs that run")

    def end(self, *, within_s: float = 90.0) -> int:
        self.wait(lambda: self.process.poll() is not None, "end", within_s=within_s)
        return self.process.returncode

    def send(self, signum: int) -> None:
        """To all processes of the terminal, as a Ctrl-C is, where it is SIGINT."""
        self.tree.look(now=True)
        if signum == signal.SIGINT:
            os.killpg(self.process.pid, signum)
        else:
            self.process.send_signal(signum)

    def left(self) -> list[psutil.Process]:
        """Processes that the sweep has started and that still run."""
        return self.tree.running()

    def close(self) -> None:
        self.tree.look(now=True)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.tree.kill(after_s=10)
