"""The command line in Hydra's grammar: composes a run and passes it on as plain values."""

from __future__ import annotations

import functools
import os
import secrets
import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write
from rich.console import Console
from rich.markup import escape

from psrun import files, parts
from psrun.cli import commands, resume
from psrun.cli.hydra_context import hydra_context
from psrun.config import advice, choices, compose, groups, overrides, parse, resolvers, targets
from psrun.config import arguments as arguments_of_a_run
from psrun.config.arguments import folder_of, key_of, unquoted
from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError
from psrun.results import recorded_config
from psrun.results.run_folder import HYDRA, RunFolder, cannot_be_made
from psrun.roles import run_process


def run(started_s: float) -> ExitCode:
    """Runs the command line `sys.argv` in Hydra's grammar: one run, or a sweep with -m.

    Raises:
      ConfigError: the configuration cannot be composed; lists all problems.
      RunFolderError: the disk is full.
      SweepError: the sweep cannot continue.
      SystemExit: Hydra ends --help and the like.
    """
    # Two runs started in the same second do not share a folder.
    resolvers.add("short_id", lambda: secrets.token_hex(2), use_cache=True)
    resolvers.add("run_name", _run_name, use_cache=True)
    command_line = resume.with_folder(sys.argv[1:])
    targets.search_modules(folder_of(command_line))
    arguments = arguments_of_a_run.options_first(command_line)
    if asked := arguments_of_a_run.asked_for(arguments):
        return _list_choices(asked, arguments)
    note_replaced(arguments)
    if arguments_of_a_run.print_something(arguments):
        return _print(arguments)
    arguments_of_a_run.require_options_of_a_run(arguments, functools.partial(_key_instead, arguments))
    if arguments_of_a_run.are_of_a_sweep(arguments):
        return _sweep(arguments)
    if any(key_of(each) == "sweep.search" for each in arguments):
        raise ConfigError([Problem("sweep.search", "searches by many runs; add -m")])
    folder = folder_of(arguments)
    started_in = None if folder is None else recorded_config.started_in(folder)
    undo = None if folder is None else RunFolder(folder).snapshot(HYDRA)
    code = ExitCode.DONE
    try:
        code = _run(composed(arguments), command_line, started_s)
    except PsrunError as error:
        code = error.exit_code
        raise _told_where(error, started_in, command_line) from None
    except compose.HYDRA_ERRORS as error:  # a reference in Hydra's own keys is resolved when the run begins
        code = ExitCode.USAGE
        raise ConfigError([compose.problem_of(error)]) from error
    finally:
        if undo is not None and code == ExitCode.USAGE:
            undo()
    return code


def _sweep(arguments: list[str]) -> ExitCode:
    sweep = commands.find(commands.MULTIRUN)
    if sweep is None:
        raise ConfigError(parts.with_missing("-m: sweeps are not installed"))
    return sweep(arguments)


def _key_instead(arguments: Sequence[str], option: str, value: str) -> str:
    """What to write instead of an option that has the name of a key or a group; empty for other names."""
    name = option.lstrip("-").replace("-", "_")
    if instead := advice.of_the_environment(name):
        return instead
    if name in groups.ONE_CHOICE:
        return f"write {name}={value}"
    others = [each for each in arguments_of_a_run.split(arguments)[1] if "=" in each]
    try:
        config = compose.compose(others)
    except ConfigError:
        config = compose.compose([])
    keys = advice.places_of(name, compose.values(config))
    return f"write {' or '.join(f'{key}={value}' for key in keys)}" if keys else ""


def composed(arguments: Sequence[str]) -> DictConfig:
    """The configuration of one run, with Hydra's node `hydra`; of a resumed run, the recorded one with changes.

    Raises:
      ConfigError: the arguments are wrong, or there is no run to resume; lists all problems.
    """
    folder = folder_of(arguments)
    if folder is None:
        return compose.compose(arguments)
    try:
        return resume.compose(arguments, folder)
    except ConfigError as error:
        if [problem.key for problem in error.problems] != ["resume"]:
            raise
        raise ConfigError([*error.problems, *_others(arguments)]) from error


def _others(arguments: Sequence[str]) -> list[Problem]:
    """The problems of keys that the arguments of a run name, where the run to resume is not found.

    Without those of keys that the recorded choices of the run may have.
    """
    others = [argument for argument in arguments if key_of(argument) != "resume"]
    named = {key for key in map(key_of, others) if "." not in key or key.partition(".")[0] not in parse.GROUPS}
    return [problem for problem in compose.all_problems(others) if problem.key in named]


def _print(arguments: list[str]) -> ExitCode:
    """Prints what an option of Hydra's asks for, such as --help or --cfg."""
    completes = not {"--shell-completion", "-sc"}.isdisjoint(arguments)
    sweeps = arguments_of_a_run.are_of_a_sweep(arguments)
    if not completes and overrides.problems(arguments, sweeps=sweeps):
        raise ConfigError(compose.all_problems(arguments_of_a_run.of_the_configuration(arguments)))
    options = arguments_of_a_run.split(arguments)[0]
    if not {"--help", "-h"}.isdisjoint(options) and (text := _help(arguments)) is not None:
        sys.stdout.write(f"{text}\n")
        return ExitCode.DONE
    if folder_of(arguments) is not None and options[-2:] == ["--cfg", "job"]:
        config = composed(arguments_of_a_run.of_the_configuration(arguments))
        sys.stdout.write(OmegaConf.to_yaml(compose.without_hydra(config)))
        return ExitCode.DONE
    try:
        compose.print_by_hydra(arguments)
    except compose.HYDRA_ERRORS as error:
        problems = compose.all_problems(arguments_of_a_run.of_the_configuration(arguments))
        raise ConfigError(problems or [Problem("", str(error))]) from error
    return ExitCode.DONE


def _help(arguments: list[str]) -> str | None:
    """The help of the configuration; None if its template is a user's and has fields of Hydra's.

    Hydra lists all choices of all groups for them, also where no field asks for it.
    """
    config = compose.compose(arguments_of_a_run.of_the_configuration(arguments))
    HydraConfig.instance().set_config(config)
    try:
        text = string.Template(config.hydra.help.template).substitute()
    except KeyError:
        return None
    words = commands.words_of_others()
    return f"{text}\nOf other packages: {'  '.join(words)}" if words else text


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
    return Path(unquoted(folders[-1]) if folders else error.filename or "runs").absolute()


def _run_name(cluster: str, otherwise: str) -> str:
    """The folder name of a new run. An engine that starts the command again finds the run by the name."""
    name = choices.cluster_of_kind(cluster).run_name(os.environ)
    return otherwise if name is None else name


def _run(config: DictConfig, command_line: list[str], started_s: float) -> ExitCode:
    """Runs a composed run in its folder.

    Raises:
      ConfigError: the folder cannot be created, or a value is wrong.
    """
    if config.hydra.mode == RunMode.MULTIRUN:
        raise ConfigError([Problem("hydra.mode", "is MULTIRUN; start a sweep with -m")])
    if config.resume and folder_of(command_line) is None:
        message = "is read from the command line only, as resume=RUN_FOLDER without +; remove it elsewhere"
        raise ConfigError([Problem("resume", message)])
    codes: list[ExitCode] = []
    errors: list[PsrunError] = []
    subdir = config.hydra.output_subdir
    config.hydra.mode = RunMode.RUN
    config.hydra.output_subdir = None  # Hydra would write the files in place
    HydraConfig.instance().set_config(config)  # references in the folder need it
    files.require_on_disk("hydra.run.dir", config.hydra.run.dir)

    def job(own: DictConfig) -> None:
        try:
            codes.append(_job(own, subdir, started_s))
        except PsrunError as error:  # Hydra would print its own message
            errors.append(error)

    context = hydra_context(config, None)
    context.callbacks.on_run_start(config=config, config_name="config")
    try:
        finished = run_job(job, config, "hydra.run.dir", None, context)
    except OSError as error:
        raise cannot_be_made(_run_folder(command_line, error), error) from error
    context.callbacks.on_run_end(config=config, config_name="config", job_return=finished)
    if errors:
        raise errors[0]
    if not codes:
        _ = finished.return_value  # raises the error of the job
    return codes[0]


def _job(own: DictConfig, subdir: str | None, started_s: float) -> ExitCode:
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir)
    plain = compose.plain(own)
    if subdir is not None:
        try:
            write_hydra(folder / subdir, own, subdir)
        except OSError as error:
            raise cannot_be_made(folder, error) from error
    if plain.get("resume") and plain["mode"] == "train" and not _is_in_use(folder):
        RunFolder(folder).pause_after(None)  # whoever resumes a job of a search wants the rest of its epochs
    overrides = [override for override in settings.overrides.task if key_of(override) != "resume"]
    # Keep a folder that the user named, whatever it holds.
    has_folder = any(key_of(override) == "hydra.run.dir" for override in settings.overrides.hydra)
    return run_process.execute(plain, folder, overrides, started_s=started_s, keep_unrun=has_folder, is_own=True)


def write_hydra(folder: Path, own: DictConfig, subdir: str) -> None:
    """Writes the files of Hydra, each at once: a process that resumes or watches the run never reads half of one."""
    hydra: Any = HydraConfig.instance().cfg
    hydra = hydra.copy()
    with read_write(hydra.hydra):
        hydra.hydra.output_subdir = subdir
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in (("config", own), ("hydra", hydra), ("overrides", hydra.hydra.overrides.task)):
        files.write_atomic(folder / f"{name}.yaml", OmegaConf.to_yaml(config))


def _is_in_use(folder: Path) -> bool:
    """Whether a process runs the run in `folder`, as far as can be seen."""
    try:
        return files.is_locked(folder)
    except OSError:  # a file system without locks
        return False


def _told_where(error: PsrunError, started_in: str | None, given: list[str]) -> PsrunError:
    """The error; if recorded values of a resumed run are wrong here, with the folder in which the run was started."""
    here = str(Path.cwd())
    if not isinstance(error, ConfigError) or started_in in (None, here):
        return error
    if {problem.key for problem in error.problems} <= {*map(key_of, given)}:
        return error
    message = f"the run was started in {started_in}; files and modules are searched in the current folder, {here}"
    return ConfigError([*error.problems, Problem("resume", message)])
