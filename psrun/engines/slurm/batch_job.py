"""`psrun submit slurm`: writes the batch script of a run into its folder, submits it and follows the run."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from psrun import files, parts, process
from psrun.config.groups import key_of, quoted, resume_folder, unquoted
from psrun.config.run_config import RunConfig
from psrun.engines.slurm import allocation, commands
from psrun.engines.slurm.choice import SCRIPT, Slurm, SlurmJob
from psrun.engines.submission import Submission
from psrun.errors import ClusterError, ConfigError, ExitCode, Problem, PsrunError
from psrun.results import run_folder, run_state, task_files
from psrun.results.console import warner
from psrun.results.run_folder import RESULT, RunFolder
from psrun.results.run_state import RunState

_LOOK_EVERY_S = 2.0
_NOTHING_YET_S = 30.0  # until files of other nodes are visible here
_REQUEUED_WITHIN_S = 10.0
_ENDED_WITHIN_S = 20.0
_SLURM_SILENT_S = 600.0  # a restarted or overloaded controller does not answer for minutes
_LAST_LINES = 5
_FOLDER = "hydra.run.dir"
_LOG = "slurm.log"


def submit(submission: Submission) -> ExitCode:
    """Prints the script of a run's job, or submits and follows the job.

    Returns:
      0 once it is submitted; the exit code of the run if it is followed, whatever that of the job.

    Raises:
      ConfigError: the run cannot be a Slurm job.
      ClusterError: Slurm's commands are not installed here, or Slurm rejects the job.
      PsrunError: the job ended and the run did not record its status.
      KeyboardInterrupt: Ctrl-C while following; the job continues.
    """
    if not submission.run.uses_cluster:
        message = f"is {submission.run.mode}, which runs in one process; run it without submit slurm"
        raise ConfigError([Problem("mode", message)])
    console = Console(highlight=False)
    whole, arguments = _folder(submission)
    # An evaluation or a prediction keeps its state in a separate folder: the run may still be running.
    mode = submission.run.mode
    folder = whole if mode == "train" else RunFolder(whole).of_cluster(mode)
    _require_steps(submission, folder)
    text = script(submission.run, arguments, where=submission.folder, folder=folder, name=f"psrun-{whole.name}")
    if submission.dry_run:
        console.print(text, markup=False, soft_wrap=True, end="")
        return ExitCode.DONE
    if submission.follow and parts.run_view() is None:
        raise ConfigError(parts.with_missing("a submitted run cannot be followed here; add --no-follow"))
    commands.needed("sbatch", "scontrol")
    _require_no_other_job(folder, key="resume" if resume_folder(submission.arguments) else _FOLDER)
    before = _result(folder)
    job = _send(folder, text)
    if mode == "train":
        with contextlib.suppress(OSError, PsrunError):  # the job runs nevertheless
            _record(folder, {"slurm_job": job}, run_folder.PENDING)
            if before is None and submission.run.run.name is not None:
                run_folder.write_name(folder, submission.run.run.name)
    console.print(f"Slurm job {job}  run folder {folder}", markup=False, soft_wrap=True)
    if not submission.follow:
        stop = _stop_command(folder, job)
        text = f"to follow it: psrun watch {folder} --wait 3600; to stop it: {stop}"
        console.print(text, markup=False, soft_wrap=True)
        return ExitCode.DONE
    return FollowedJob(folder, job, console, before, asked=_asked(submission.run)).follow()


def _send(folder: Path, text: str) -> str:
    """Submits the script from the folder of the run; the id of the job. A folder that has no job is left as it was.

    Raises:
      ConfigError: the folder cannot be written to.
      ClusterError: Slurm rejects the job, or cannot be reached.
    """
    is_new_folder = not folder.exists()
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)  # Slurm does not create the folder of its log
        files.write_atomic(folder / SCRIPT, text)
    except OSError as error:
        raise ConfigError([Problem(_FOLDER, f"{folder} cannot be written to: {error}")]) from error
    try:
        return commands.submit(folder / SCRIPT)
    except commands.NotSentError:
        if is_new_folder:
            files.remove_tree(folder)
        raise
    except ClusterError:
        if is_new_folder and _may_have_job(folder):
            with contextlib.suppress(OSError):
                _record(folder, {}, run_folder.PENDING)  # for psrun stop, which finds the job by its script
        elif is_new_folder:
            files.remove_tree(folder)
        raise


def script(run: RunConfig, arguments: Sequence[str], *, where: Path, folder: Path, name: str) -> str:
    """The batch script; users may edit and submit it themselves.

    Args:
      arguments: of the run, with the run folder.
      where: working directory of the run.
      folder: of the run.
      name: of the job.

    Raises:
      ConfigError: a value for one line of the script contains a line break.
    """
    job = run.submission
    assert isinstance(job, SlurmJob)
    _check_lines(job, where, folder)
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
        "output": str(folder / "logs" / _LOG).replace("%", "%%"),  # Slurm replaces %j and the like
        "open-mode": "append",
        "signal": f"B:USR1@{job.warn_s}",  # before the time limit: psrun saves and requeues the job
    }
    # Requeued after a lost node: the run resumes from its checkpoints.
    options = [f"--{key}={_quoted(str(value))}" for key, value in values.items() if value is not None]
    lines = [f"#SBATCH {option}" for option in [*options, "--requeue", *job.options]]
    # psrun starts once, on the first node, and starts the tasks as steps of the job. The signal is for it, hence exec.
    command = f"exec {shlex.join([*process.psrun_command(), *arguments])}"
    title = f"# {allocation.described(run)}; written by psrun submit slurm."
    return "\n".join(["#!/bin/bash", title, *lines, "", *job.setup, command, ""])


def _check_lines(job: SlurmJob, where: Path, folder: Path) -> None:
    """Refuses line breaks: the text after one would be a command of the script."""
    values = {f"slurm.{name}": value for name, value in vars(job).items() if isinstance(value, str)}
    values |= {f"slurm.options[{index}]": value for index, value in enumerate(job.options)}
    values |= {_FOLDER: str(folder), "the current folder": str(where)}
    problems = [
        Problem(key, f"is {value!r}; an sbatch option cannot contain a line break")
        for key, value in values.items()
        if len(value.splitlines()) > 1 or value.endswith(("\n", "\r"))
    ]
    if "\\" in str(folder):  # a backslash turns off the replacement of % in Slurm, and is removed
        problems.append(Problem(_FOLDER, f"is {str(folder)!r}; Slurm cannot write logs to a path with a backslash"))
    if problems:
        raise ConfigError(problems)


def _quoted(text: str) -> str:
    """In the syntax of sbatch comments: double quotes around blanks, backslashes before quotes."""
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if any(mark in text for mark in " \t#'\"") else text


def _folder(submission: Submission) -> tuple[Path, list[str]]:
    """The folder of the run, and the arguments of the run, which include the folder."""
    arguments = submission.arguments
    resumed = resume_folder(arguments)
    if resumed is not None:
        return resumed.absolute(), arguments
    folders = [each.partition("=")[2] for each in arguments if key_of(each) == _FOLDER]
    if folders and "${" in folders[-1]:
        message = f"is {folders[-1]}, which a requeued job would resolve to another folder; set a fixed name"
        raise ConfigError([Problem(_FOLDER, message)])
    if folders:
        folder = submission.folder / unquoted(folders[-1])
    else:
        model = submission.run.model.name.rpartition(".")[2]
        folder = submission.folder / "runs" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{model}-{secrets.token_hex(2)}"
    if RunFolder(folder).has_run and not RunFolder(folder).makes_room:
        raise ConfigError([Problem(_FOLDER, f"{folder} holds a run already; choose another folder")])
    others = [each for each in arguments if key_of(each) != _FOLDER]
    return folder, [*others, f"{_FOLDER}={quoted(folder)}"]


def _require_steps(submission: Submission, folder: Path) -> None:
    """Raises ConfigError if the run to resume is complete: a job would be allocated for nothing."""
    if submission.run.mode != "train" or resume_folder(submission.arguments) is None:
        return
    why = run_state.nothing_to_train(folder, submission.run.raw)
    if why:
        raise ConfigError([Problem("resume", why)])


def _require_no_other_job(folder: Path, *, key: str) -> None:
    """Raises ConfigError if Slurm has a job of the run already, and ClusterError if Slurm does not answer."""
    deadline_s = time.monotonic() + _ENDED_WITHIN_S
    while jobs := run_state.look(folder).jobs():
        first = jobs[0]
        # Slurm takes a moment to end the job of a run that has ended.
        if first.waits or not run_state.look(folder).ended or time.monotonic() > deadline_s:
            shown = shlex.quote(str(folder))
            message = (
                f"{folder} has {first.title} already, {first.state}, which runs it; to follow that job: "
                f"psrun watch {shown}; to submit another one: psrun stop {shown} first"
            )
            raise ConfigError([Problem(key, message)])
        time.sleep(_LOOK_EVERY_S)


def _asked(run: RunConfig) -> str:
    """What the job asks Slurm for, in words."""
    job = run.submission
    assert isinstance(job, SlurmJob)
    cores = "1 core" if job.cpus_per_task == 1 else f"{job.cpus_per_task} cores"
    parts_of_text = [f"{sum(run.num_tasks.values())} tasks of {cores}"]
    if job.memory_per_cpu is not None:
        parts_of_text.append(f"{job.memory_per_cpu} for each core")
    if job.nodes is not None:
        parts_of_text.append(f"on {job.nodes} nodes")
    for name, value in (("time", job.time), ("partition", job.partition)):
        if value is not None:
            parts_of_text.append(f"{name} {value}")
    return ", ".join([*parts_of_text, *job.options])


def _may_have_job(folder: Path) -> bool:
    """Whether Slurm has a job of a folder, or does not say so."""
    try:
        return bool(Slurm.jobs(folder, []))
    except ClusterError:
        return True


def _stop_command(folder: Path, job: str) -> str:
    """The command that ends a submitted job: `psrun stop` for a training, `scancel` for other modes.

    `psrun stop` needs the recorded submission, which only a training has.
    """
    if run_folder.submission(folder)[1]:
        return f"psrun stop {shlex.quote(str(folder))}"
    return f"scancel {job}"


def _record(folder: Path, job: Mapping[str, str], status: str) -> None:
    """Records the job of a run that has not begun, as run.json has it in `process`. Raises OSError."""
    run_folder.record_submission(folder, cluster="slurm", job=job, status=status)


def _result(folder: Path) -> bytes | None:
    """The current content of run.json; None if there is none."""
    try:
        return (folder / RESULT).read_bytes()
    except OSError:
        task_files.names(folder)
        return None


class FollowedJob:
    """A job and its run, followed through requeues until both are over.

    Args:
      before: content of run.json before the job.
      asked: what the job asks Slurm for, in words.
    """

    def __init__(self, folder: Path, job: str, console: Console, before: bytes | None, *, asked: str = "") -> None:
        self._asked = asked
        self._folder = folder
        self._job = job
        self._console = console
        self._before = before
        self._view = parts.run_view()
        self._state = commands.JobState("PENDING")
        self._looked_s = float("-inf")
        self._answered_s = time.monotonic()
        self._alive_s = time.monotonic()
        self._printed = ""
        self._warned = ""

    def follow(self) -> ExitCode:
        """See `submit`."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # to show the cursor again, which a live view hides
        try:
            self._await_begin()
            view = self._view(self._folder, self._console, wait_s=_NOTHING_YET_S, continues=self._continues)
            code: ExitCode = view.follow()
            if _result(self._folder) == self._before:
                raise PsrunError(f"job {self._job} ended without starting the run{self._how_it_ended()}")
            return code
        except KeyboardInterrupt:
            text = f"stopped following; job {self._job} continues. To follow it: psrun watch {self._folder}; "
            stop = _stop_command(self._folder, self._job)
            self._console.print(f"{text}to stop it: {stop}", style="dim", markup=False, soft_wrap=True)
            raise

    def _await_begin(self) -> None:
        """Waits until the run has started or resumed. Raises PsrunError if the job has ended before."""
        alive_s = time.monotonic()
        while _result(self._folder) == self._before:
            self._look()
            if self._state.is_alive:
                alive_s = time.monotonic()
            elif time.monotonic() - alive_s > min(_NOTHING_YET_S, 3 * _LOOK_EVERY_S):
                with contextlib.suppress(OSError):
                    _record(self._folder, {"slurm_job": self._job}, run_folder.NOT_RUN)
                raise PsrunError(f"job {self._job} ended before the run started{self._how_it_ended()}")
            time.sleep(0.5)

    def _continues(self, run: RunState) -> bool:
        """Whether the job may continue a run that seems to be over: it may be requeued.

        During a requeue Slurm reports for a moment that the job is over.
        """
        self._look()
        if self._state.is_alive:
            self._alive_s = time.monotonic()
        asks = run.result.get("exit_code") == ExitCode.RESTART
        return self._state.is_alive or (asks and time.monotonic() - self._alive_s < _REQUEUED_WITHIN_S)

    def _look(self) -> None:
        """Asks for the state of the job now and then, and prints a new one of a job that waits."""
        if time.monotonic() - self._looked_s <= _LOOK_EVERY_S:
            return
        self._looked_s = time.monotonic()
        try:
            state = self._state = commands.look(self._job)
        except ClusterError as error:
            if time.monotonic() - self._answered_s > _SLURM_SILENT_S:
                raise ClusterError(f"{error}; the job may continue: psrun watch {self._folder}") from error
            if str(error) != self._warned:
                self._warned = str(error)
                warner(self._console)(self._warned)
            return
        self._answered_s = time.monotonic()
        self._warned = ""
        reason = f" ({state.reason})" if state.reason not in ("", "None") else ""
        if "BeginTime" in reason:
            reason += f" until {state.start}" if state.start else ""
        elif reason and self._asked:
            reason += f"; it asks for {self._asked}"
        text = f"job {self._job} {state.state.lower()}{reason}"
        if text != self._printed and state.waits:
            self._console.print(text, style="dim", markup=False)
        self._printed = text

    def _how_it_ended(self) -> str:
        """The end of the job as text, with the end of its log."""
        how = f": {self._state.state}, exit code {self._state.exit_code}" if self._state.state else ""
        if self._state.exit_code.endswith(f":{signal.SIGUSR1:d}"):  # psrun had not even begun to handle it
            how += "; its time limit came too early: set slurm.time higher"
        log = self._folder / "logs" / _LOG
        lines: list[str] = []
        if log.exists():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"{how} (log: {log})", *lines[-_LAST_LINES:]])
