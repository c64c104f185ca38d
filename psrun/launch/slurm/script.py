"""The batch script of a run, which `psrun submit slurm` writes and submits; users may edit and submit it themselves."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from psrun import process
from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, Problem
from psrun.launch.slurm import allocation

SCRIPT, LOG = "slurm.sh", "slurm.log"


def render(run: RunConfig, arguments: Sequence[str], *, where: Path, folder: Path, name: str) -> str:
    """The script.

    Args:
      arguments: of the run, with the run folder.
      where: working directory of the run.
      folder: of the run.
      name: of the job.

    Raises:
      ConfigError: a value for one line of the script contains a line break.
    """
    job = run.submission
    assert isinstance(job, choices.SlurmJob)
    values = {
        "job-name": name,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "nodes": job.nodes,
        "ntasks": sum(run.num_tasks.values()),
        "cpus-per-task": job.cpus_per_task,
        "mem-per-cpu": job.memory_per_cpu,
        "chdir": where,
        "output": str(folder / "logs" / LOG).replace("%", "%%"),  # Slurm replaces %j and the like
        "open-mode": "append",
        "requeue": True,  # after a lost node; the run resumes from its checkpoints
        "signal": f"B:USR1@{job.warn_s}",  # before the time limit: psrun saves and requeues the job
    }
    options = [_option(key, value) for key, value in values.items() if value is not None]
    _check_lines(job, where, folder)
    lines = [f"#SBATCH {option}" for option in [*options, *job.options]]
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {allocation.described(run)}; written by psrun submit slurm.",
            *lines,
            "",
            *job.setup,
            # Once, on the first node; it starts the tasks as steps of the job. The signal is for it, hence exec.
            f"exec {shlex.join([*process.psrun_command(), *arguments])}",
            "",
        ]
    )


def _option(key: str, value: object) -> str:
    text = "" if value is True else f"={_quoted(str(value))}"
    return f"--{key}{text}"


def _check_lines(job: choices.SlurmJob, where: Path, folder: Path) -> None:
    """Refuses line breaks: the text after one would be a command of the script."""
    values = {f"slurm.{name}": value for name, value in vars(job).items() if isinstance(value, str)}
    values |= {f"slurm.options[{index}]": value for index, value in enumerate(job.options)}
    values |= {"hydra.run.dir": str(folder), "the current folder": str(where)}
    problems = [
        Problem(key, f"is {value!r}; an sbatch option cannot contain a line break")
        for key, value in values.items()
        if len(value.splitlines()) > 1 or value.endswith(("\n", "\r"))
    ]
    if "\\" in str(folder):  # a backslash turns off the replacement of % in Slurm, and is removed
        problems.append(
            Problem("hydra.run.dir", f"is {str(folder)!r}; Slurm cannot write logs to a path with a backslash")
        )
    if problems:
        raise ConfigError(problems)


def _quoted(text: str) -> str:
    """In the syntax of sbatch comments: double quotes around blanks, backslashes before quotes."""
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if any(mark in text for mark in " \t#'\"") else text
