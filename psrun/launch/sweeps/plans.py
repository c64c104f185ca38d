"""`psrun -m mode=plan`: memory and traffic of the jobs of a sweep, planned in one process and shown in one table."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from psrun import process
from psrun.errors import ConfigError, Problem, SweepError, ended
from psrun.results.run_folder import RunFolder
from psrun.results.sweep import Sweep, distinguishing


def make(sweep: Sweep) -> None:
    """Plans all jobs that are not planned yet into their run folders. Raises SweepError if that fails."""
    log = sweep.path / "plan.log"
    command = process.module_command("psrun.roles.plan_jobs", str(sweep.path))
    environment = {**os.environ, process.SWEEP_PID: str(os.getpid())}
    with log.open("ab") as file:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        code = subprocess.run(command, env=environment, start_new_session=True, check=False, **streams).returncode
    if code:
        raise SweepError(f"the planning process {ended(code)} (log: {log})")


def show(sweep: Sweep, console: Console) -> None:
    """Prints one row per job. Raises ConfigError if jobs cannot be planned, with the reasons."""
    jobs = [job for _, job in sorted(sweep.jobs.items())]
    problems = []
    table = Table(title="Plans (read, pushed: per step of a worker)", title_justify="left", box=None, pad_edge=False,
                  header_style="bold")  # fmt: skip
    for heading in ("job", "overrides", "on each ps", "fullest task", "read", "pushed"):
        is_text = heading in ("overrides", "on each ps")
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    for job, apart in zip(jobs, distinguishing([job.overrides for job in jobs])):
        result = RunFolder(sweep.folder(job)).stored()
        if result.get("status") == "completed":
            table.add_row(str(job.number), Text(apart), *_priced(result))
            continue
        message = (result.get("error") or {}).get("message", "was not planned")
        table.add_row(str(job.number), Text(apart), "[red]refused[/red]")
        problems.append(Problem(f"job {job.number} ({apart or 'as given'})", message))
    console.print(table)
    console.print("Variables only, without TensorFlow itself, the input pipeline and activations.", soft_wrap=True)
    if problems:
        raise ConfigError(problems)


def _priced(result: dict[str, Any]) -> list[str]:
    sizes = Counter[str]()
    for shard in result["placement"]:
        sizes[shard["task"]] += shard["bytes"]
    ps = [size for task, size in sorted(sizes.items()) if task.startswith("ps-")]
    fullest = max(sizes, key=sizes.__getitem__, default="")
    moved = result["bytes_per_step"]
    return [
        _at_most(ps),
        f"{fullest} {decimal(sizes[fullest])}",
        *((decimal(moved[name]) if ps else "") for name in ("read_bytes", "pushed_bytes")),
    ]


def _at_most(sizes: list[int], most: int = 4) -> str:
    if len(sizes) <= most:
        return ", ".join(map(decimal, sizes))
    return f"{decimal(min(sizes))} to {decimal(max(sizes))} on {len(sizes)}"
