"""Plans all jobs of a sweep in one process, which imports TensorFlow once.

python -m psrun.runs.sweeps.plan_jobs FOLDER
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from psrun import process
from psrun.config import parse, targets
from psrun.errors import ExitCode
from psrun.results.run_folder import CONFIG, RunFolder
from psrun.roles import planner, run_process
from psrun.runs.sweeps.sweep import LOG, Job, Sweep


def _run(started_s: float) -> ExitCode:
    process.end_with_sweep()
    targets.search_modules()
    sweep = Sweep.read(Path(sys.argv[1]))
    for job in sweep.jobs.values():
        if RunFolder(sweep.folder(job)).stored().get("status") is None:
            _plan(sweep.folder(job), job)
    return ExitCode.DONE


def _plan(path: Path, job: Job) -> None:
    """Plans one job as mode=plan does. An error does not affect the other jobs."""
    raw: Any = OmegaConf.to_container(OmegaConf.load(path / CONFIG))
    folder = RunFolder.create(path, raw=raw)
    started_s = time.time()
    folder.emit("begun", mode="plan", started_s=started_s, overrides=job.overrides)
    with folder.log(LOG).open("a", encoding="utf-8") as log:
        try:
            planner.run(parse.load(raw), folder, Console(file=log, width=120, highlight=False))
        except Exception as error:
            traceback.print_exception(error, file=log)
            run_process.record_failure(folder, error, "planner", started_s)
            return
    folder.emit("ended", status="completed", exit_code=ExitCode.DONE, wall_s=round(time.time() - started_s, 3))


if __name__ == "__main__":
    run_process.to_the_end(_run)
