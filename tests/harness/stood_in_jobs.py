"""`psrun -m` with jobs that take no TensorFlow: a script stands in for the process of a job."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fault_injection import Cluster

LONG = "trainer.epochs=1000"

# Fails where the seed is 13; where there are more than 100 epochs it runs until a signal ends it, or the file `go`
# exists; seed 99 kills itself; 17 requests a restart twice, 18 each time; 22 has no loss with learning rates above 0.6.
JOB = """
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
    code = 130 if signum == signal.SIGINT else 175
    run.emit_at_once("ended", status="interrupted", exit_code=code, error=error)
    os._exit(code)

signal.signal(signal.SIGINT, interrupted)
signal.signal(signal.SIGTERM, interrupted)
run.emit("begun", overrides=overrides, pid=os.getpid(), began_s=time.time(), resume=config.resume,
           times=before.get("times", 0) + 1)
print("printed to the terminal")
while config.trainer.epochs != "auto" and config.trainer.epochs > 100 and not (folder.parent / "go").exists():
    time.sleep(0.05)
if config.seed == 99:
    os.kill(os.getpid(), signal.SIGKILL)
if config.seed == 18 or config.seed == 17 and before.get("times", 0) < 2:
    error = {"message": "preempted", "type": "I", "task": "chief-0"}
    run.emit("ended", status="interrupted", exit_code=175, error=error)
    sys.exit(175)
if config.seed == 13:
    error = {"message": "unlucky\\nand more", "type": "E", "task": "chief-0"}
    run.emit("ended", status="failed", exit_code=1, error=error)
    sys.exit(1)
time.sleep(0.3)
pause = run.pause_epoch
if pause is not None and pause < config.trainer.epochs:
    run.emit("search", state="paused", epoch=pause)
epochs = pause or config.trainer.epochs
distance = abs(config.optimizer.learning_rate - 0.1)
loss = 1.0 / config.seed if epochs == "auto" else (distance + config.seed / 1000) / epochs
if config.seed == 22 and distance > 0.5:
    loss = None  # undefined
trained = [*before.get("trained", []), epochs]
status = "interrupted" if run.is_paused else "completed"
run.emit("ended", status=status, exit_code=0, ended_s=time.time(), wall_s=0.5, trained=trained,
           metrics={"loss": loss, "val_auc": config.seed / 100})
"""
INSTEAD = """
from psrun import process
import sys
process.task_command = lambda folder: [sys.executable, {script!r}, str(folder)]
command = process.module_command
process.module_command = lambda module, *more: (
    ["false"] if module == "psrun.roles.fork_server" else command(module, *more)  # each job starts alone
)
"""


def stood_in(root: Path) -> dict[str, str]:
    """Variables of the environment in which a script is what a job runs: it takes no TensorFlow."""
    script = root / "job.py"
    script.write_text(JOB)
    (root / "sitecustomize.py").write_text(textwrap.dedent(INSTEAD).format(script=str(script)))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}


class Sweep(Cluster):
    """`psrun -m ...` under way, or ended, with `real` jobs or others instead."""

    def __init__(self, root: Path, *arguments: str, real: bool = False) -> None:
        super().__init__(root, "-m", *arguments, **({} if real else stood_in(root)))

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "sweep.json").read_text())

    def results(self) -> dict[int, dict[str, Any]]:
        return {int(file.parent.name): json.loads(file.read_text()) for file in self.folder.glob("*/run.json")}

    def wait_for_running(self, count: int) -> None:
        def running() -> bool:
            self._ended_early()
            return sum(result["status"] == "running" for result in self.results().values()) >= count

        self.wait(running, f"{count} jobs that run")

    def send(self, signum: int) -> None:
        """To all processes of the terminal, as a Ctrl-C and the end of the terminal are."""
        self.look(now=True)
        if signum in (signal.SIGINT, signal.SIGHUP):
            os.killpg(self.process.pid, signum)
        else:
            self.process.send_signal(signum)


def sweeps(root: Path) -> Iterator[Callable[..., Sweep]]:
    """Starts sweeps below `root`; none of their processes outlives the generator."""
    started: list[Sweep] = []

    def run(*arguments: str, real: bool = False) -> Sweep:
        folder = root / f"started{len(started)}"
        folder.mkdir()
        resumes = any(each.startswith("resume=") for each in arguments)
        started.append(Sweep(folder, *arguments, *([] if resumes else ["hydra.sweep.dir=sweep"]), real=real))
        return started[-1]

    yield run
    for each in started:
        each.close()
