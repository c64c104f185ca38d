"""The boundary to Hydra: composes the configuration and passes it on as plain values."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape

from psrun.config import arguments as arguments_of_a_run
from psrun.config import compose, groups, hydra_internals, parse
from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError
from psrun.launch.slurm import allocation
from psrun.results import recorded_config
from psrun.results.recorded_config import key_of
from psrun.results.recorded_groups import RecordedChoices
from psrun.results.run_folder import HYDRA, RunFolder, cannot_be_made
from psrun.results.sweep import RECORD as SWEEP
from psrun.roles import run_process

# Options of Hydra's that print something, and start no run.
_PRINT = {"--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--shell-completion", "-sc"}


def run(started_s: float) -> ExitCode:
    """Runs the command line `sys.argv` in Hydra's grammar: one run, or a sweep with -m.

    Raises:
      ConfigError: the configuration cannot be composed; lists all problems.
      RunFolderError: the disk is full.
      SweepError: the sweep cannot continue.
    """
    # Two runs started in the same second do not share a folder.
    OmegaConf.register_new_resolver("short_id", lambda: secrets.token_hex(2), use_cache=True, replace=True)
    OmegaConf.register_new_resolver("run_name", _run_name, use_cache=True, replace=True)
    sys.path.append(os.getcwd())  # for the user's own modules
    command_line, codes = sys.argv[1:], []
    errors: list[PsrunError] = []
    arguments = arguments_of_a_run.options_first(command_line)
    if asked := arguments_of_a_run.asked_for(arguments):
        return _list_choices(asked, arguments)
    note_replaced(arguments)
    if arguments_of_a_run.are_of_a_sweep(arguments):
        # Imported here, as no other command needs the modules of sweeps: a sixth of its imports.
        return importlib.import_module("psrun.cli.hydra_sweeps").run(arguments)
    arguments = _whole(arguments)

    def job(composed: DictConfig) -> None:
        try:
            codes.append(_job(composed, command_line, started_s))
        except PsrunError as error:  # Hydra would print its own message
            errors.append(error)

    prints = not _PRINT.isdisjoint(map(key_of, arguments))
    sys.argv[1:] = arguments
    folder = recorded_config.folder_of(arguments)
    started_in = None if folder is None else recorded_config.started_in(folder)
    undo = None if folder is None else RunFolder(folder).snapshot(HYDRA)  # which Hydra writes before it hands over
    with hydra_internals.files_read_once():
        try:
            with hydra_internals.lines_that_raise() if prints else contextlib.nullcontext():
                compose.run(job)
        except compose.HYDRA_ERRORS as error:
            errors.append(_described(error, sys.argv[1:]))
        except OSError as error:
            if prints:  # standard output is what cannot be written
                raise
            errors.append(cannot_be_made(_run_folder(sys.argv[1:], error), error))
    if undo is not None and ExitCode.USAGE in (*codes, *(error.exit_code for error in errors)):
        undo()
    if errors:
        raise _told_where(errors[0], started_in, command_line)
    return codes[0] if codes else ExitCode.DONE


def _whole(arguments: list[str]) -> list[str]:
    """The arguments of one run, with the original ones of a resumed run.

    Raises:
      ConfigError: some cannot be read, or there is no run to resume; lists all problems.
    """
    if arguments_of_a_run.problems(arguments, sweeps=False):
        raise ConfigError(compose.all_problems([each for each in arguments if key_of(each) != "resume"]))
    try:
        return resumed(arguments)
    except ConfigError as error:
        raise ConfigError([*error.problems, *_others(arguments)]) from error


def _described(error: Exception, arguments: list[str]) -> ConfigError:
    """All problems of arguments that Hydra cannot compose."""
    return ConfigError(compose.all_problems(arguments, error) or [compose.blame(error, arguments)[1]])


def _others(arguments: list[str]) -> list[Problem]:
    """The problems of keys that the arguments of a run name, where the run to resume is not found.

    Without those of keys that the recorded choices of the run may have.
    """
    others = [argument for argument in arguments if key_of(argument) != "resume"]
    named = {key for key in map(key_of, others) if "." not in key or key.partition(".")[0] not in parse.GROUPS}
    return [problem for problem in compose.all_problems(others) if problem.key in named]


def _list_choices(asked: list[str], arguments: list[str]) -> ExitCode:
    """Prints the choices of groups, a line each.

    Raises:
      ConfigError: there is no such group.
    """
    choices = groups.choices(arguments)
    unknown = [
        Problem(name, f"is no group.{did_you_mean(name, choices)} To see all keys: psrun --cfg job")
        for name in asked
        if name not in choices
    ]
    if unknown:
        raise ConfigError(unknown)
    console = Console(highlight=False)
    for name in asked:
        width = max(map(len, choices[name]))
        for choice, path in sorted(choices[name].items()):
            line = f"{name}={choice:<{width}}  {groups.description(path)}".rstrip()
            console.print(line, markup=False, soft_wrap=True)
    return ExitCode.DONE


def note_replaced(arguments: list[str]) -> None:
    """Prints which files of the user's are used instead of psrun's of the same name."""
    replaced = groups.replaced(arguments)
    if replaced:
        names = ", ".join(f"{path.parent.name}={path.stem} ({path})" for path in replaced)
        console = Console(stderr=True, highlight=False)
        console.print("[yellow]note:[/yellow]", escape(f"used instead of psrun's own: {names}"), soft_wrap=True)


def _run_folder(arguments: list[str], error: OSError) -> Path:
    """The run folder that Hydra could not create or write to."""
    folders = [a.partition("=")[2] for a in arguments if a.startswith("hydra.run.dir=")]
    return Path(recorded_config.unquoted(folders[-1]) if folders else error.filename or "runs").absolute()


def _run_name(cluster: str, otherwise: str) -> str:
    """The folder name of a new run. A requeued Slurm job finds its run by the name."""
    return (allocation.run_name(os.environ) if cluster == "slurm" else None) or otherwise


def _job(composed: DictConfig, command_line: list[str], started_s: float) -> ExitCode:
    settings = HydraConfig.get()
    if settings.mode == RunMode.MULTIRUN:
        raise ConfigError([Problem("hydra.mode", "is MULTIRUN; start a sweep with -m")])
    if composed.resume and recorded_config.folder_of(command_line) is None:
        message = "is read from the command line only, as resume=RUN_FOLDER without +; remove it elsewhere"
        raise ConfigError([Problem("resume", message)])
    folder = Path(settings.runtime.output_dir).absolute()
    plain = compose.plain(composed)
    if composed.resume:
        plain = recorded_config.as_recorded(
            plain, OmegaConf.to_container(composed, resolve=False), folder, command_line
        )
    overrides = [override for override in settings.overrides.task if key_of(override) != "resume"]
    # Keep a folder that the user named, whatever it holds.
    has_folder = any(key_of(override) == "hydra.run.dir" for override in settings.overrides.hydra)
    return run_process.execute(plain, folder, overrides, started_s=started_s, keep_unrun=has_folder)


def _told_where(error: PsrunError, started_in: str | None, given: list[str]) -> PsrunError:
    """The error; if recorded values of a resumed run are wrong here, with the folder in which the run was started."""
    here = str(Path.cwd())
    if not isinstance(error, ConfigError) or started_in in (None, here):
        return error
    if {problem.key for problem in error.problems} <= {*map(key_of, given)}:
        return error
    message = f"the run was started in {started_in}; files and modules are searched in the current folder, {here}"
    return ConfigError([*error.problems, Problem("resume", message)])


def resumed(arguments: list[str]) -> list[str]:
    """The arguments of a resumed run: its original arguments, overridden by the current ones.

    Raises:
      ConfigError: the folder of `resume` holds no run.
    """
    folder = recorded_config.folder_of(arguments)
    if folder is None:
        return arguments
    if any(a.startswith("hydra.run.dir=") for a in arguments):
        raise ConfigError([Problem("resume", "a resumed run keeps its folder; remove hydra.run.dir")])
    try:
        recorded = json.loads((folder / "run.json").read_text(encoding="utf-8"))["overrides"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError([Problem("resume", _no_run(folder, error))]) from error
    now = {key_of(argument) for argument in arguments}
    before = [argument for argument in recorded if key_of(argument) not in now]
    choices = RecordedChoices(folder, recorded, {*now, *map(key_of, before)})
    quoted = recorded_config.quoted(folder)
    others = [a for a in arguments if not a.startswith("resume=")]
    others += [f"resume={quoted}", f"hydra.run.dir={quoted}"]
    if any(a.startswith("mode=") and a != "mode=train" for a in arguments):
        others.append("hydra.output_subdir=null")  # leaves the recorded configuration unchanged
    return [*others, *_holding(before, others, choices)]


def _no_run(folder: Path, error: Exception) -> str:
    if (folder / SWEEP).exists():
        return f"{folder} holds a sweep; use psrun -m resume=..."
    if not folder.is_dir():
        return f"there is no run in {folder}: no such folder (current folder: {Path.cwd()})"
    why = "no run.json" if isinstance(error, FileNotFoundError) else f"run.json: {error}"
    return f"there is no run in {folder}: {why}; name the folder of a run, such as runs/RUN"


def _holding(before: list[str], now: list[str], choices: RecordedChoices) -> list[str]:
    """The arguments of `before` that are valid with those of `now`; offers Hydra the recorded choices that they need.

    A new choice of a group may not have the keys of the previous choice.
    """
    earlier, current = [*before], [*now]
    while True:
        composed = compose.compose([*current, *earlier])
        failed = composed if isinstance(composed, Exception) else None
        missing = choices.taken_for_a_value(composed) if isinstance(composed, dict) else None
        missing = compose.missing_choice(failed) if failed else missing
        if missing is not None and choices.offer(*missing):
            continue
        culprit = compose.blame(failed, [*earlier, *current])[0] if failed else None
        if culprit is None:
            return earlier
        (earlier if culprit in earlier else current).remove(culprit)  # problems of current arguments are reported later
