"""`psrun submit slurm`: writes the batch script of a run into its folder, submits it and follows the run."""

from __future__ import annotations

import secrets
import signal
import time
from pathlib import Path

from rich.console import Console

from psrun import files
from psrun.errors import ClusterError, ConfigError, ExitCode, Problem, PsrunError
from psrun.launch.slurm import commands, script
from psrun.launch.submission import Submission
from psrun.results import recorded_config, task_files
from psrun.results.console import warner
from psrun.results.run_folder import RESULT, RunFolder
from psrun.results.run_state import RunState
from psrun.results.watch.run import RunView

_LOOK_EVERY_S = 2.0
_NOTHING_YET_S = 30.0  # until files of other nodes are visible here
_REQUEUED_WITHIN_S = 10.0
_SLURM_SILENT_S = 600.0  # a restarted or overloaded controller does not answer for minutes
_LAST_LINES = 5
_LINES_OF_SLURM = 2
_FOLDER = "hydra.run.dir"


def submit(submission: Submission, console: Console) -> ExitCode:
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
    whole, arguments = _folder(submission)
    # An evaluation or a prediction keeps its state in a separate folder: the run may still be running.
    mode = submission.run.mode
    folder = whole if mode == "train" else RunFolder(whole).of_cluster(mode)
    text = script.render(submission.run, arguments, where=submission.folder, folder=folder, name=f"psrun-{whole.name}")
    if submission.dry_run:
        console.print(text, markup=False, soft_wrap=True, end="")
        return ExitCode.DONE
    commands.needed("sbatch", "scontrol")
    script_path, before = _written(folder, text), _result(folder)
    job = commands.submit(script_path)
    console.print(f"Slurm job {job}  run folder {folder}", markup=False, soft_wrap=True)
    if not submission.follow:
        console.print(f"to follow it: psrun watch {folder} --wait 3600; to cancel it: scancel {job}", markup=False)
        return ExitCode.DONE
    return Following(folder, job, console, before).follow()


def _folder(submission: Submission) -> tuple[Path, list[str]]:
    """The folder of the run, and the arguments of its tasks, which include the folder."""
    arguments = submission.arguments
    resumed = recorded_config.folder_of(arguments)
    if resumed is not None:
        return resumed.absolute(), arguments
    folders = [each.partition("=")[2] for each in arguments if recorded_config.key_of(each) == _FOLDER]
    if folders and "${" in folders[-1]:
        message = f"is {folders[-1]}, which each task would resolve to another folder; set a fixed name"
        raise ConfigError([Problem(_FOLDER, message)])
    if folders:
        folder = submission.folder / recorded_config.unquoted(folders[-1])
    else:
        model = submission.run.model.name.rpartition(".")[2]
        folder = submission.folder / "runs" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{model}-{secrets.token_hex(2)}"
    if (folder / RESULT).exists():
        raise ConfigError([Problem(_FOLDER, f"{folder} holds a run already; choose another folder")])
    others = [each for each in arguments if recorded_config.key_of(each) != _FOLDER]
    return folder, [*others, f"{_FOLDER}={recorded_config.quoted(folder)}"]


def _written(folder: Path, text: str) -> Path:
    """Writes the script into the folder. Raises ConfigError if that is not possible."""
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)  # Slurm does not create the folder of its log
        files.write_atomic(folder / script.SCRIPT, text)
    except OSError as error:
        raise ConfigError([Problem(_FOLDER, f"{folder} cannot be written to: {error}")]) from error
    return folder / script.SCRIPT


def _result(folder: Path) -> bytes | None:
    """The current content of run.json; None if there is none."""
    try:
        return (folder / RESULT).read_bytes()
    except OSError:
        task_files.names(folder)
        return None


class Following:
    """A job and its run, followed through requeues until both are over.

    Args:
      before: content of run.json before the job.
    """

    def __init__(self, folder: Path, job: str, console: Console, before: bytes | None) -> None:
        self._folder, self._job, self._console, self._before = folder, job, console, before
        self._looked_s, self._state = float("-inf"), commands.JobState("PENDING")
        self._printed, self._alive_s = "", time.monotonic()
        self._answered_s, self._warned, self._warn = time.monotonic(), "", warner(console)

    def follow(self) -> ExitCode:
        """See `submit`."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # to show the cursor again, which a live view hides
        try:
            self._await_begin()
            view = RunView(self._folder, self._console, wait_s=_NOTHING_YET_S, continues=self._continues)
            code = view.follow()
            if _result(self._folder) == self._before:
                raise PsrunError(f"job {self._job} ended without starting the run{self._how()}")
            return code
        except KeyboardInterrupt:
            text = f"stopped following; job {self._job} continues. To follow it: psrun watch {self._folder}; "
            self._console.print(f"{text}to cancel it: scancel {self._job}", style="dim", markup=False, soft_wrap=True)
            raise

    def _await_begin(self) -> None:
        """Waits until the run has started or resumed. Raises PsrunError if the job has ended before."""
        ended_s: float | None = None
        while _result(self._folder) == self._before:
            self._look()
            if self._state.is_alive:
                self._print_state()
                ended_s = None
            elif ended_s is None:
                ended_s = time.monotonic()
            elif time.monotonic() - ended_s > min(_NOTHING_YET_S, 3 * _LOOK_EVERY_S):
                raise PsrunError(f"job {self._job} ended before the run started{self._how()}")
            time.sleep(0.5)

    def _continues(self, run: RunState) -> bool:
        """Whether the job may continue a run that seems to be over: it may be requeued.

        During a requeue Slurm reports for a moment that the job is over.
        """
        self._look()
        self._print_state()
        if self._state.is_alive:
            self._alive_s = time.monotonic()
        asks = run.result.get("exit_code") == ExitCode.RESTART
        return self._state.is_alive or (asks and time.monotonic() - self._alive_s < _REQUEUED_WITHIN_S)

    def _look(self) -> None:
        if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            try:
                self._state = commands.look(self._job)
            except ClusterError as error:
                if time.monotonic() - self._answered_s > _SLURM_SILENT_S:
                    raise ClusterError(f"{error}; the job may continue: psrun watch {self._folder}") from error
                self._warn_once(str(error))
                return
            self._answered_s, self._warned = time.monotonic(), ""

    def _warn_once(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            self._warn(text)

    def _print_state(self) -> None:
        text = f"job {self._job} {self._state.state.lower()}"
        text += f" ({self._state.reason})" if self._state.reason not in ("", "None") else ""
        if text != self._printed and self._state.waits:
            self._console.print(text, style="dim", markup=False)
        self._printed = text

    def _how(self) -> str:
        state = self._state
        how = f": {state.state}, exit code {state.exit_code}" if state.state else ""
        log = self._folder / "logs" / script.LOG
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join([f"{how} (log: {log})", *_last_lines(lines)])


def _last_lines(lines: list[str]) -> list[str]:
    """The last lines of the tasks, then the first ones of Slurm, which names the task that ended the others."""
    of_slurm = [line for line in lines if line.startswith(("srun: ", "slurmstepd: "))]
    of_tasks = [line for line in lines if line not in of_slurm]
    return [*of_tasks[-_LAST_LINES:], *of_slurm[:_LINES_OF_SLURM]]
