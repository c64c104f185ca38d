"""What a command line does: a command of psrun or of a part, or an experiment, new or resumed, composed by Hydra."""

from __future__ import annotations

import argparse
import functools
import json
import os
import secrets
import shlex
import string
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.utils import run_job
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from rich.console import Console
from rich.markup import escape

import psrun
from psrun import files, parts
from psrun.cli.hydra_context import hydra_context
from psrun.config import advice, argument_syntax, choices, composition, groups, parse, targets
from psrun.config.choices import KINDS
from psrun.config.composition import Composer, without_hydra
from psrun.config.groups import ASKS, key_of, quoted, resume_folder, unquoted
from psrun.config.parse import RECORDED
from psrun.config.run_config import DEFAULT_MODE, RESUME, TAKE_A_RUN, WORDS
from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError
from psrun.results import recorded_config, run_state
from psrun.results.console import line_width
from psrun.results.run_folder import CONFIG, HYDRA, RESULT, RunFolder, cannot_be_made, rebuilt
from psrun.roles import run_process

Command = Callable[[list[str]], ExitCode]
_CORE_COMMANDS = {"checkpoint": "psrun.checkpoint.commands:main", "init": "psrun.cli.init:main"}
# Options that a part carries out. They are no words, and no command line begins with them by mistake.
MULTIRUN = "--multirun"
COMPLETION = "--shell-completion"
_ALSO_TRAIN = ("fit", "run")  # what people may call it
_KEYS_OF_RUNS = ("resume", "consistency.run")  # whose value is a run: its folder or its name
_HELP = ("--help", "-h")
_COLUMNS = 80  # of the help
_LEAST_BESIDE = 30  # columns for the text beside a name
_INDENT = "  "


def find_command(word: str) -> Command | None:
    """The function of a command, which takes the arguments after the word; None if there is no such command."""
    if word in WORDS:
        return functools.partial(_run_by_word, time.time(), word)
    name = _CORE_COMMANDS.get(word) or parts.command(word)
    if name is None:
        return None
    command: Command = parts.load(name)
    return command


def command_words() -> list[str]:
    """The words of all commands: those that stand for keys of a run, then all others."""
    found = [*WORDS]
    for part in parts.every():
        found += part.commands
    found += _CORE_COMMANDS
    return [word for word in dict.fromkeys(found) if not word.startswith("-")]


def run() -> None:
    """Runs psrun on `sys.argv` and ends the process."""
    run_process.to_the_end(_dispatch)


def _dispatch(started_s: float) -> ExitCode:
    arguments = sys.argv[1:]
    if arguments in ([], ["-"]):
        _print_instead_of_run(["--help"])
        return ExitCode.USAGE  # so that a script that expects a training does not go on
    if arguments == ["--version"]:
        Console().print(f"psrun {psrun.__version__}", highlight=False)
        return ExitCode.DONE
    if arguments[0] == "help":
        sys.argv[1:] = [*arguments[1:], "--help"]
        return _dispatch(started_s)
    if arguments[0] in ("-sc", COMPLETION):
        return _completion(arguments[1:])
    word, others = word_of_run(arguments)
    if word is not None:
        return _run_by_word(started_s, word, others)
    if arguments[0].isidentifier() and not _is_torn(arguments):
        return _command(arguments[0], arguments[1:])
    return run_experiment(started_s)


def _is_torn(arguments: Sequence[str]) -> bool:
    """Whether the first argument is the name in NAME = VALUE."""
    return len(arguments) > 1 and arguments[1].startswith("=")


def _completion(arguments: list[str]) -> ExitCode:
    complete = find_command(COMPLETION)
    if complete is None:
        raise ConfigError(parts.with_missing("-sc: completion is not installed"))
    return complete(arguments)


def word_of_run(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The first argument that is no option, if it is a word of `WORDS`, and the other arguments.

    Returns:
      None in place of the word for other command lines.
    """
    given = groups.split_arguments(arguments)[1]
    if not given or given[0] not in WORDS or _is_torn(given):
        return None, [*arguments]
    at = 0
    while not groups.split_arguments(arguments[: at + 1])[1]:  # an option may have the word as its value
        at += 1
    return given[0], [*arguments[:at], *arguments[at + 1 :]]


def _run_by_word(started_s: float, word: str, arguments: Sequence[str]) -> ExitCode:
    """Runs `psrun WORD ARGUMENTS`; raises as `run_experiment`."""
    if not set(_HELP).isdisjoint(arguments):
        sys.stdout.write(_help_of_word(word))
        return ExitCode.DONE
    sys.argv[1:] = as_keys(word, arguments)
    return run_experiment(started_s)


def as_keys(word: str, arguments: Sequence[str]) -> list[str]:
    """The arguments in Hydra's grammar that `psrun WORD ARGUMENTS` stands for.

    Raises:
      ConfigError: the word takes other arguments.
    """
    if not groups.prints_something(arguments):
        groups.require_options_of_a_run(arguments, functools.partial(_key_instead, arguments))
    options, others = groups.split_arguments(arguments)
    torn = argument_syntax.torn(others)
    runs = [each for each in others if each not in torn and groups.names_run(each)]
    keys = [each for each in others if each not in runs]
    sweeps = groups.is_sweep(options)
    if message := _wrong_after_word(word, runs, keys, sweeps=sweeps):
        raise ConfigError(message)
    stands_for = []
    if word not in (RESUME, DEFAULT_MODE):
        stands_for.append(f"mode={word}")
    for run in runs:
        resumed = _by_folder(f"resume={quoted(run if '://' in run else Path(run))}")
        stands_for.append(resumed)
        is_whole_sweep = word == RESUME and _holds_sweep(resume_folder([resumed]))
        if is_whole_sweep and not sweeps and not groups.prints_something(options):
            options.append("-m")
    return [*options, *stands_for, *keys]


def _wrong_after_word(word: str, runs: Sequence[str], keys: Sequence[str], *, sweeps: bool) -> str:
    """The message for arguments that a word does not take; empty if it takes them.

    Args:
      runs, keys: the arguments without options.
      sweeps: whether -m is among the options.
    """
    named = [*runs, *(each for each in keys if key_of(each) == "resume")]
    modes = [each for each in keys if key_of(each) == "mode"]
    if modes and word != RESUME:
        return f"mode: is {word} by the command; remove {modes[0]}"
    if word not in TAKE_A_RUN:
        return _run_after_word(word, runs[0], keys) if runs else ""
    if not named:
        return f"{word} needs a run; write psrun {word} RUN, its folder or its name (psrun list shows the runs)"
    if len(named) > 1 and word != RESUME and Path(named[-1]).is_file():
        file = named[-1]
        return f"{word} takes one run, not also the file {file}; for its rows, write data.eval_path={file}"
    if len(named) > 1:
        return f"{word} takes one run, not {len(named)}: {', '.join(named)}; write a command for each of them"
    if sweeps and word != RESUME:
        return f"{word} takes one run, and no -m; write a command for each run"
    return ""


def _run_after_word(word: str, given: str, keys: Sequence[str]) -> str:
    """The message for `psrun train` or `psrun plan` with an argument that has no =."""
    for group in ("model", "experiment"):
        if given in groups.choices_of(group, keys):
            return f"{word} takes GROUP=NAME and KEY=VALUE, not {given}; write psrun {word} {group}={given}"
    message = f"{word} takes GROUP=NAME and KEY=VALUE of a new run, not {given}"
    return f"{message}; to continue a run, write psrun resume {shlex.quote(given)}"


def _holds_sweep(folder: Path | None) -> bool:
    """Whether a folder holds a sweep, and no run."""
    if folder is None or RunFolder(folder).has_run:
        return False
    return os.path.exists(folder / run_state.SWEEP)


def _help_of_word(word: str) -> str:
    """The --help of a word that stands for keys of a run, COLUMNS wide."""
    does, examples = WORDS[word]
    of_a_run = word in TAKE_A_RUN
    width = max(map(len, examples)) + 2
    lines = [f"  psrun {word} {given:<{width}}{what}" for given, what in examples.items()]
    parser = argparse.ArgumentParser(
        usage=f"psrun {word} {'RUN ' if of_a_run else ''}[GROUP=NAME ...] [KEY=VALUE ...]",
        description=does,
        epilog="\n".join(["examples:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if of_a_run:
        parser.add_argument("run", metavar="RUN", help=run_state.WORD_HELP)
    parser.add_argument("choice", metavar="GROUP=NAME", help="a choice of a group: psrun GROUP=? lists them")
    parser.add_argument("key", metavar="KEY=VALUE", help="the value of a key: psrun --cfg job lists them")
    if not of_a_run:
        parser.add_argument("-m", "--multirun", action="store_true", help="a run for each combination of values A,B")
    parser.add_argument("--config-dir", metavar="FOLDER", help="folder with choices of your own")
    parser.add_argument("--cfg", metavar="job", help="show the configuration; run nothing")
    return parser.format_help()


def _command(word: str, arguments: list[str]) -> ExitCode:
    command = find_command(word)
    if command is None:
        raise ConfigError(_no_command(word, arguments))
    stores = parts.stores() if any("://" in each for each in arguments) else None
    if stores is None:
        return command(arguments)
    with stores.local(word, arguments) as local:
        return command(local)


def _no_command(word: str, others: Sequence[str]) -> str:
    """The message for a first argument that is no command."""
    keys = [each for each in others if "=" in each or each.startswith("-")]
    names = [each for each in others if each not in keys]
    if word in groups.ONE_CHOICE and not set(_HELP).isdisjoint(keys):
        shows_keys = f"psrun --cfg job {word}=NAME shows the keys of one"
        return f"{word} is a group; psrun {word}=? lists its choices, and {shows_keys}"
    if word in _ALSO_TRAIN:
        return f"{word} is no command; write {_line(['train', *(keys or ['model=NAME'])])}"
    if word in groups.SINGLE_KEYS:
        value = names[0] if names else "VALUE"
        return f"{word} is a key; write {_line([f'{word}={value}', *keys])}"
    if word in groups.ONE_CHOICE:
        choice = names[0] if names else "NAME"
        command = _line([f"{word}={choice}", *keys])
        message = f"{word} is a group; write {command}. psrun {word}=? lists its choices"
        return message if choice in groups.choices_of(word, keys) else parts.with_missing(message)
    guess = did_you_mean(word, command_words())
    return parts.with_missing(f"unknown command '{word}'.{guess} A run takes GROUP=NAME and KEY=VALUE: see --help")


def _line(arguments: Sequence[str]) -> str:
    return " ".join(["psrun", *arguments])


def run_experiment(started_s: float) -> ExitCode:
    """Runs the command line `sys.argv` in Hydra's grammar: one run, or a sweep with -m.

    Raises:
      ConfigError: the configuration cannot be composed; lists all problems.
      RunFolderError: the disk is full.
      SweepError: the sweep cannot continue.
      SystemExit: Hydra ends --help and the like.
    """
    # Two runs started in the same second do not share a folder.
    parse.add_resolver("short_id", lambda: secrets.token_hex(2), use_cache=True)
    parse.add_resolver("run_name", _run_name, use_cache=True)
    command_line = with_resume_folder(_with_local_folder(groups.with_keys_of_options(sys.argv[1:])))
    targets.search_modules(resume_folder(command_line))
    arguments = groups.options_first(command_line)
    if asked := groups.groups_asked_for(arguments):
        return _list_choices(asked, arguments)
    note_replaced(arguments)
    if groups.prints_something(arguments):
        return _print_instead_of_run(arguments)
    groups.require_options_of_a_run(command_line, functools.partial(_key_instead, command_line))
    if groups.is_sweep(arguments):
        return _sweep(arguments)
    if any(key_of(each) == "sweep.search" for each in arguments):
        raise ConfigError([Problem("sweep.search", "needs several runs; add -m")])
    folder = resume_folder(arguments)
    started_in = None if folder is None else recorded_config.started_in(folder)
    try:
        return _run_composed(composed(arguments), command_line, started_s)
    except PsrunError as error:
        raise _told_where(error, started_in, command_line) from None
    except composition.HYDRA_ERRORS as error:  # a reference in Hydra's own keys is resolved when the run begins
        raise ConfigError([composition.problem_of(error)]) from error


def _sweep(arguments: list[str]) -> ExitCode:
    sweep = find_command(MULTIRUN)
    if sweep is None:
        raise ConfigError(parts.with_missing("-m: sweeps are not installed"))
    return sweep(arguments)


def _key_instead(arguments: Sequence[str], option: str, value: str) -> str:
    """What to write instead of an option that has the name of a key or a group; empty for other names."""
    name = option.lstrip("-").replace("-", "_")
    if instead := advice.of_the_environment(name):
        return instead
    above, dot, _ = name.partition(".")
    if name in groups.ONE_CHOICE or (dot and above in (*parse.GROUPS, *parse.TOP, "hydra")):
        return f"write {name}={value}"
    others = [each for each in groups.split_arguments(arguments)[1] if "=" in each]
    try:
        config = composition.compose(others)
    except ConfigError:
        config = composition.compose([])
    keys = advice.places_of(name, composition.values(config))
    return f"write {' or '.join(f'{key}={value}' for key in keys)}" if keys else ""


def composed(arguments: Sequence[str]) -> DictConfig:
    """The configuration of one run, with Hydra's node `hydra`; of a resumed run, the recorded one with changes.

    Raises:
      ConfigError: the arguments are wrong, or there is no run to resume; lists all problems.
    """
    folder = resume_folder(arguments)
    if folder is None:
        return composition.compose(arguments)
    try:
        return compose_resumed(arguments, folder)
    except ConfigError as error:
        if [problem.key for problem in error.problems] != ["resume"]:
            raise
        raise ConfigError([*error.problems, *_problems_of_other_keys(arguments)]) from error


def _problems_of_other_keys(arguments: Sequence[str]) -> list[Problem]:
    """The problems of keys that the arguments of a run name, where the run to resume is not found.

    Problems of keys that the recorded choices of the run may have are left out.
    """
    others = [argument for argument in arguments if key_of(argument) != "resume"]
    named = {key for key in map(key_of, others) if "." not in key or key.partition(".")[0] not in parse.GROUPS}
    return [problem for problem in composition.all_problems(others) if problem.key in named]


def _print_instead_of_run(arguments: list[str]) -> ExitCode:
    """Prints what an option of Hydra's asks for, such as --help or --cfg."""
    completes = not {"--shell-completion", "-sc"}.isdisjoint(arguments)
    sweeps = groups.is_sweep(arguments)
    if not completes and composition.problems_of_arguments(arguments, sweeps=sweeps):
        raise ConfigError(composition.all_problems(groups.arguments_of_the_configuration(arguments)))
    options = groups.split_arguments(arguments)[0]
    if not {"--help", "-h"}.isdisjoint(options) and (text := _help(arguments)) is not None:
        sys.stdout.write(f"{text}\n")
        return ExitCode.DONE
    if resume_folder(arguments) is not None and options[-2:] == ["--cfg", "job"]:
        config = composed(groups.arguments_of_the_configuration(arguments))
        sys.stdout.write(OmegaConf.to_yaml(composition.without_hydra(config)))
        return ExitCode.DONE
    try:
        composition.print_by_hydra(arguments)
    except composition.HYDRA_ERRORS as error:
        problems = composition.all_problems(groups.arguments_of_the_configuration(arguments))
        raise ConfigError(problems or [Problem("", str(error))]) from error
    return ExitCode.DONE


def _help(arguments: list[str]) -> str | None:
    """The help of the configuration; None if its template is a user's and has fields of Hydra's.

    Hydra lists all choices of all groups for them, also where no field asks for it.
    """
    config = composition.compose(groups.arguments_of_the_configuration(arguments))
    HydraConfig.instance().set_config(config)
    try:
        return string.Template(config.hydra.help.template).substitute(COMMANDS=_listed_commands())
    except KeyError:
        return None


def _listed_commands() -> str:
    """The words of all commands, for the help: those that stand for keys of a run are in a line of their own."""
    others = [word for word in command_words() if word not in WORDS]
    lines = [_INDENT + "  ".join(WORDS)]
    lines += textwrap.wrap("  ".join(others), _COLUMNS, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)


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
    columns = line_width(console)
    for name in asked:
        width = max(map(len, choices[name]))
        for choice, path in sorted(choices[name].items()):
            start = f"{name}={choice:<{width}}  "
            text = _hanging(start, groups.description(path), columns)
            console.print(text, markup=False, soft_wrap=True)
    return ExitCode.DONE


def _hanging(start: str, text: str, width: int | None) -> str:
    """The start and the text beside it, folded with a hanging indent.

    Args:
      width: the columns of a line; None for one line.
    """
    if width is None or width < len(start) + _LEAST_BESIDE:
        return f"{start}{text}".rstrip()
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent = start
    wrapper.subsequent_indent = " " * len(start)
    return wrapper.fill(text) or start.rstrip()


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


def _run_composed(config: DictConfig, command_line: list[str], started_s: float) -> ExitCode:
    """Runs a composed run in its folder.

    Raises:
      ConfigError: the folder cannot be created, or a value is wrong.
    """
    if config.hydra.mode == RunMode.MULTIRUN:
        raise ConfigError([Problem("hydra.mode", "is MULTIRUN; start a sweep with -m")])
    if config.resume and resume_folder(command_line) is None:
        message = "is read from the command line only, as psrun resume RUN; remove it elsewhere"
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
    plain = composition.plain(own)
    resumes_training = bool(plain.get("resume")) and plain["mode"] == "train"
    if resumes_training:
        why = run_state.nothing_to_train(folder, plain)
        if why:
            Console(highlight=False).print("[yellow]hint:[/yellow]", escape(why), soft_wrap=True)
            return ExitCode.DONE
    # Keep a folder that the user named, whatever it holds.
    has_folder = any(key_of(override) == "hydra.run.dir" for override in settings.overrides.hydra)
    overrides = [override for override in settings.overrides.task if key_of(override) != "resume"]
    there = RunFolder(folder)
    restore = _restoring_hydra(there)
    code = ExitCode.DONE
    try:
        if subdir is not None:
            _write_hydra_in(folder, own, subdir)
        if resumes_training and not files.is_in_use(folder):
            there.pause_after(None)  # whoever resumes a job of a search wants the rest of its epochs
        code = run_process.execute(
            plain,
            folder,
            overrides,
            started_s=started_s,
            keep_unrun=has_folder,
            is_own=True,
        )
    except PsrunError as error:
        code = error.exit_code
        raise
    finally:
        if restore is not None and _is_undone(code, there):
            restore()
    return code


def _restoring_hydra(folder: RunFolder) -> Callable[[], None] | None:
    """A function that restores Hydra's files of the run in the folder; None if there is no run to protect."""
    try:
        if not folder.has_run or folder.makes_room:
            return None
        return folder.snapshot(HYDRA)
    except OSError:  # files that cannot be read cannot be replaced: writing them raises the error
        return None


def _is_undone(code: ExitCode, folder: RunFolder) -> bool:
    """Whether the earlier run in the folder is unchanged.

    Args:
      code: the exit code of the process that tried to resume or replace it.
    """
    if code == ExitCode.DONE:
        return False
    return code == ExitCode.USAGE or folder.stored().get("status") == "completed"


def _write_hydra_in(folder: Path, own: DictConfig, subdir: str) -> None:
    """As `write_hydra`, in a run folder; raises PsrunError."""
    try:
        write_hydra(folder / subdir, own, subdir)
    except OSError as error:
        raise cannot_be_made(folder, error) from error


def write_hydra(folder: Path, own: DictConfig, subdir: str) -> None:
    """Writes the files of Hydra, each at once: a process that resumes or watches the run never reads half of one."""
    hydra: Any = HydraConfig.instance().cfg
    hydra = hydra.copy()
    with read_write(hydra.hydra):
        hydra.hydra.output_subdir = subdir
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in (("config", own), ("hydra", hydra), ("overrides", hydra.hydra.overrides.task)):
        files.write_atomic(folder / f"{name}.yaml", OmegaConf.to_yaml(config))


def _told_where(error: PsrunError, started_in: str | None, given: list[str]) -> PsrunError:
    """The error; if recorded values of a resumed run are wrong here, with the folder in which the run was started."""
    here = str(Path.cwd())
    if not isinstance(error, ConfigError) or started_in in (None, here):
        return error
    if {problem.key for problem in error.problems} <= {*map(key_of, given)}:
        return error
    message = f"the run was started in {started_in}; files and modules are searched in the current folder, {here}"
    return ConfigError([*error.problems, Problem("resume", message)])


def compose_resumed(arguments: Sequence[str], folder: Path, *, into: Path | None = None) -> DictConfig:
    """The configuration of the run in `folder` as it goes on, with Hydra's node `hydra`.

    Args:
      into: the folder of a new run with this configuration; None to resume the run.

    Raises:
      ConfigError: the folder holds no run, or the arguments are wrong; lists all problems.
    """
    recorded = _recorded_overrides(folder, arguments)
    choices = _recorded_choices(folder)
    arguments = [each for each in arguments if not _names_what_is_gone(each, choices, arguments)]
    now = [each for each in arguments if not each.startswith("resume=")]
    now += [f"hydra.run.dir={quoted(into or folder)}"]
    if into is None:
        now.append(f"resume={quoted(folder)}")
    if any(each.startswith("mode=") and each != "mode=train" for each in arguments):
        now.append("hydra.output_subdir=null")  # leaves the recorded configuration unchanged
    run = _resumption(folder, arguments, recorded, choices)
    return Composer.create(arguments).compose([*now, *run.explicit], implied=run.implied, prepare=run.lay_over)


def _with_local_folder(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a local folder for the URL of the run that is started or resumed.

    With a URL it returns in a child process; see `psrun.runs.stores`. Raises ConfigError.
    """
    local = []
    for argument in arguments:
        key = key_of(argument)
        value = argument.partition("=")[2]
        is_url = key in ("hydra.run.dir", "resume") and "://" in value
        if not is_url or groups.is_sweep(arguments):
            local.append(argument)
        elif key == "resume" or not groups.prints_something(arguments):
            stores = parts.stores()
            if stores is None:
                raise ConfigError([parts.without_part(key)])
            local.append(f"{key}={quoted(stores.begin(unquoted(value), key))}")
    return local


def with_resume_folder(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the folder of the run or sweep that a key names by its name or by the end of its folder's.

    Raises:
      ConfigError: several have it, or it is a URL.
    """
    for argument in arguments:
        if key_of(argument) in _KEYS_OF_RUNS:
            files.require_on_disk(key_of(argument), unquoted(argument.partition("=")[2]))
    return [_by_folder(argument) for argument in arguments]


def _by_folder(argument: str) -> str:
    key, _, value = argument.partition("=")
    if key not in _KEYS_OF_RUNS or value in ("", "null", ASKS):
        return argument
    try:
        folder = run_state.find_named(unquoted(value))
        run_state.require_readable(folder or Path(unquoted(value)))
    except ConfigError as error:
        raise ConfigError([Problem(key, problem.message) for problem in error.problems]) from error
    return argument if folder is None else f"{key}={quoted(folder.absolute())}"


def _recorded_overrides(folder: Path, arguments: Sequence[str]) -> list[str]:
    if any(each.startswith("hydra.run.dir=") for each in arguments):
        raise ConfigError([Problem("resume", "a resumed run keeps its folder; remove hydra.run.dir")])
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        recorded: list[str] = result["overrides"]
    except (OSError, ValueError, KeyError) as error:
        result = rebuilt(folder)
        if not result:
            raise ConfigError([Problem("resume", _no_run_to_resume(folder, error))]) from error
        recorded = result["overrides"]
    return recorded


def _no_run_to_resume(folder: Path, error: Exception) -> str:
    if os.path.exists(folder / run_state.SWEEP):
        shown = run_state.shown_path(folder)
        message = f"{shown} holds a sweep; name a job of it, such as {shown}/0 (psrun report {shown} ranks them)"
        return f"{message}; all jobs continue with {run_state.resume_command(folder)}"
    if not os.path.isdir(folder):
        guess = run_state.guess(folder.name)
        return f"there is no run in {folder}: no such folder (current folder: {Path.cwd()}){guess}"
    if isinstance(error, FileNotFoundError):
        return f"there is no run in {folder}: no run.json; name the folder of a run, such as runs/RUN"
    return f"the run in {folder} cannot be resumed: run.json cannot be read ({error})"


@dataclass(frozen=True)
class _Resumption:
    """What a run recorded, beside what the command names now.

    Choices of a person's own groups lie under --config-dir, which need not be given again, and may be gone: what such a
    choice held is in the run folder.

    Attributes:
      folder: the run folder.
      now: the groups and keys that the command names.
      replaced: the groups whose choice the command replaces.
      choices: of the run so far, by group or GROUP@PLACE.
      written: the recorded configuration, with references; empty without files of Hydra.
      keys: the arguments KEY=VALUE of the run so far that the command does not replace.
      explicit: the arguments GROUP=NAME of the run so far that still hold and whose files are here.
      gone: the arguments GROUP=NAME of the run so far whose files are not here.
      implied: the other choices that still hold and whose files are here, such as defaults.
      is_incomplete: whether the file of a choice that still holds is not here.
    """

    folder: Path
    now: set[str]
    replaced: set[str]
    choices: Mapping[str, Any]
    written: Mapping[str, Any]
    keys: list[Override]
    explicit: list[str]
    gone: list[str]
    implied: list[str]
    is_incomplete: bool

    def lay_over(self, config: DictConfig) -> list[str]:
        """Puts the recorded configuration into a composed one; returns the arguments of the run that still apply."""
        kept = [*self.gone, *self._set_keys(config)]
        has_experiment = "experiment" in self.now
        nodes: Any = OmegaConf.to_container(without_hydra(config), resolve=False)
        if self.is_incomplete and not has_experiment:
            for name, node in self.written.items():
                if name in RECORDED and name not in self.replaced:
                    nodes[name] = node
        held = recorded_config.as_recorded(nodes, nodes, self.folder, self.now)
        with open_dict(config):
            config.update({name: held[name] for name in RECORDED if name in held})
            if not has_experiment:
                config.hydra.runtime.choices.update(self._choices_that_hold())
        return kept

    def _set_keys(self, config: DictConfig) -> list[str]:
        """Sets the recorded keys in a composed configuration; returns the arguments that still apply."""
        kept = []
        for override in self.keys:
            problem = composition.set_key(config, override)
            group = override.key_or_group.partition(".")[0]
            may_be_gone = group in self.replaced or not self.now.isdisjoint((group, "experiment"))
            if problem is None or not may_be_gone:
                kept.append(str(override.input_line))
        return kept

    def _choices_that_hold(self) -> dict[str, Any]:
        """The recorded choices that the command does not replace, without Hydra's own."""
        held = {}
        for name, choice in self.choices.items():
            if not name.startswith("hydra/") and name.partition("@")[0] not in self.replaced:
                held[name] = choice
        return held


def _resumption(
    folder: Path, arguments: Sequence[str], before: Sequence[str], choices: Mapping[str, Any]
) -> _Resumption:
    """What the run in `folder` recorded, beside what the command names now.

    Args:
      arguments: of the command.
      before: the arguments of the run so far.
      choices: of the run so far, by group or GROUP@PLACE.
    """
    now = {key_of(each) for each in arguments}
    replaced = now & groups.ONE_CHOICE
    if "model" in now:
        replaced.add("data")  # a model selects data
    composed = folder / HYDRA[0]
    written = recorded_config.read(composed) if composed.exists() else {}
    chosen, keys = _chosen_and_keys(before, now, {**groups.choices(arguments), **choices})
    there = {each.key_or_group: str(each.input_line) for each in chosen if _is_there(each, arguments)}
    gone = [str(each.input_line) for each in chosen if each.key_or_group not in there]
    is_incomplete = bool(gone)
    implied = []
    for group, choice in inherited_choices(choices, replaced).items():
        names = _names_of_choice(choice)
        if not groups.choices_of(group, arguments).keys() >= {*names}:
            is_incomplete = True
        elif group not in there and group != "experiment" and "experiment" not in now:
            value = f"[{','.join(names)}]" if isinstance(choice, list) else names[0]
            implied.append(f"{group}={value}")
    explicit = [*there.values()]
    return _Resumption(folder, now, replaced, choices, written, keys, explicit, gone, implied, is_incomplete)


def _chosen_and_keys(
    before: Sequence[str], now: Collection[str], known: Mapping[str, Any]
) -> tuple[list[Override], list[Override]]:
    """The arguments that choose of a group, and those that set a key, without the groups and keys `now`."""
    chosen = []
    keys = []
    for override in composition.parsed_overrides([each for each in before if key_of(each) not in now]):
        if composition.is_of_a_group(override, known):
            chosen.append(override)
        else:
            keys.append(override)
    return chosen, keys


def inherited_choices(choices: Mapping[str, Any], replaced: Collection[str]) -> dict[str, Any]:
    """The recorded choices of psrun's groups but the replaced ones, by group.

    Args:
      choices: by group or GROUP@PLACE; None where a group has no choice.
    """
    inherited = {}
    for name, choice in choices.items():
        group, _, place = name.partition("@")
        if choice is None or group in replaced or group not in groups.ONE_CHOICE:
            continue
        if place and place.rpartition(".")[2] != group:  # such as optimizer@table_optimizer, which a file selects
            continue
        inherited[group] = choice
    return inherited


def _recorded_choices(folder: Path) -> dict[str, Any]:
    """The choices of the run in `folder`, by group or GROUP@PLACE."""
    hydra = folder / HYDRA[1]
    choices: dict[str, Any] = (
        recorded_config.read(hydra)["hydra"]["runtime"]["choices"] if hydra.exists() else _kinds(folder / CONFIG)
    )
    return choices


def _names_what_is_gone(argument: str, choices: Mapping[str, Any], arguments: Sequence[str]) -> bool:
    """Whether an argument repeats a recorded choice whose file is not here: what it held is recorded."""
    group, value = key_of(argument), argument.partition("=")[2]
    is_recorded = any(name.partition("@")[0] == group and choice == value for name, choice in choices.items())
    return is_recorded and value not in groups.choices_of(group, arguments)


def _kinds(config: Path) -> dict[str, Any]:
    """The choices of a run without files of Hydra, as with hydra.output_subdir=null: they have the names of kinds."""
    nodes = recorded_config.read(config) if config.exists() else {}
    several = {name: [*nodes[name]] for name in groups.SEVERAL_CHOICES if name in nodes}
    return several | {name: nodes[name]["kind"] for name in KINDS if "kind" in nodes.get(name, ())}


def _names_of_choice(choice: Any) -> list[str]:
    """The names of the choices of a group, of which a run may have several."""
    return [str(each) for each in choice] if isinstance(choice, list) else [str(choice)]


def _is_there(override: Override, arguments: Sequence[str]) -> bool:
    """Whether the files of the choices of an override exist; also of one without a choice."""
    if override.is_delete():
        return True
    value: Any = override.value()
    names = value if isinstance(value, list) else [value]
    options = groups.choices_of(override.key_or_group, arguments)
    return all(name in options for name in names)
