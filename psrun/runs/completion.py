"""Shell completion. The script of `psrun -sc install=SHELL` (Hydra's) calls `psrun -sc query=SHELL` at each TAB.

Hydra completes groups, choices and keys; this module completes commands, options and folders. It prints only the
candidates: a line without completions is not an error, because the user is still typing it.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from psrun import process
from psrun.cli import command_line
from psrun.cli.command_line import Command
from psrun.config.groups import names_run, split_arguments
from psrun.config.run_config import TAKE_A_RUN, WORDS
from psrun.engines.submit import ENGINES
from psrun.errors import ConfigError, ExitCode

_ASKED = re.compile(r"(install|uninstall|query)=(bash|zsh|fish)")
_OF_A_RUN = ("--cfg", "--config-dir", "--help", "--hydra-help", "--multirun", "--version")
_CONFIG_DIR, _RESUME, _SUBMIT = "--config-dir", "resume=", "submit"


def main(arguments: Sequence[str]) -> ExitCode:
    """Runs `psrun -sc ARGUMENTS`: prints the script for a shell, or the completions of COMP_LINE.

    Args:
      arguments: `install=SHELL`, `uninstall=SHELL` or `query=SHELL`.

    Raises:
      ConfigError: `arguments` is none of these.
    """
    if len(arguments) != 1 or not _ASKED.fullmatch(arguments[0]):
        raise ConfigError(
            f"invalid argument of -sc: {' '.join(arguments) or 'none'}; use install=SHELL, uninstall=SHELL or "
            "query=SHELL, where SHELL is bash, zsh or fish"
        )
    if not arguments[0].startswith("query="):
        return command_line.run_experiment(time.time())
    return _query(arguments[0])


def _query(shell: str) -> ExitCode:
    line = os.environ.get("COMP_LINE", "")
    words = line.split()[1:] + ([""] if line[-1:].isspace() else [])
    *before, word = words or [""]
    with process.silent_stderr():
        if before and before[0] == _SUBMIT and not word.startswith("-"):
            answers = _of_submit(before[1:], word, shell)
        elif before == ["help"]:
            answers = _of_words(word)
        elif before and before[0] in WORDS and not word.startswith("-"):
            answers = _of_run(before[0], before[1:], word, shell)
        elif before and (command := _command(before[0])) is not None:
            answers = _of_command(command, before[1:], word)
        elif word.startswith("-"):
            answers = [option for option in _OF_A_RUN if option.startswith(word)]
        elif word.startswith(_RESUME):
            answers = [_RESUME + path for path in _paths(word.removeprefix(_RESUME), folders=True)]
        elif before and before[-1] == _CONFIG_DIR:
            answers = _paths(word, folders=True)
        else:
            answers = [] if before else _of_words(word)
            answers += _of_hydra(before, word, shell)
    sys.stdout.write("".join(f"{answer}\n" for answer in answers))
    return ExitCode.DONE


def _command(word: str) -> Command | None:
    """The command of a word; None for what is no word, such as an override."""
    return command_line.find_command(word) if word.isidentifier() else None


def help_of(command: Command, *arguments: str) -> str:
    """The --help text of a command, or of one of its subcommands, COLUMNS wide."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        command([*arguments, "--help"])
    return printed.getvalue()


def parts_of(help_: str) -> list[str]:
    """The subcommands of a command, from the usage line of its --help: `inspect|verify|diff`."""
    usage = re.search(r"\w+(?:\|\w+)+", help_.partition("\n\n")[0])
    return usage[0].split("|") if usage else []


def _of_command(command: Command, before: Sequence[str], word: str) -> list[str]:
    parts = parts_of(help_of(command))
    if parts and not before:
        return [part for part in parts if part.startswith(word)]
    if not word.startswith("-"):
        return _paths(word)
    options = re.findall(r"--[a-z-]+", help_of(command, *(before[:1] if parts else ())))
    return [option for option in dict.fromkeys(options) if option.startswith(word)]


def _of_submit(before: Sequence[str], word: str, shell: str) -> list[str]:
    """Completes the engine, then the overrides of a run on it."""
    if not before:
        return [engine for engine in ENGINES if engine.startswith(word)]
    return _of_hydra([f"cluster={before[0]}", *before[1:]], word, shell)


def _of_words(word: str) -> list[str]:
    return [each for each in command_line.command_words() if each.startswith(word)]


def _of_run(command: str, before: Sequence[str], word: str, shell: str) -> list[str]:
    """Completes the run, if the command takes one, and the overrides."""
    if before[-1:] == [_CONFIG_DIR]:
        return _paths(word, folders=True)
    answers = _of_hydra(before, word, shell)
    has_run = any(names_run(each) for each in split_arguments(before)[1])
    if command in TAKE_A_RUN and not has_run:
        answers = [*_paths(word, folders=True), *answers]
    return answers


def _paths(start: str, *, folders: bool = False) -> list[str]:
    paths = glob.glob(glob.escape(start) + "*")
    return sorted(path + "/" * Path(path).is_dir() for path in paths if Path(path).is_dir() or not folders)


def _of_hydra(before: Sequence[str], word: str, shell: str) -> list[str]:
    """Completes groups and keys with Hydra. Hydra ignores options in COMP_LINE, so --config-dir becomes an argument."""
    options = ["-sc", shell]
    if _CONFIG_DIR in before[:-1]:
        options += [_CONFIG_DIR, before[before.index(_CONFIG_DIR) + 1]]
    overrides = [each for each in before if "=" in each and not each.startswith("-")]
    os.environ["COMP_LINE"] = " ".join(["psrun", *overrides, word])
    sys.argv[1:] = options
    printed = io.StringIO()
    # Hydra asserts that what comes before the last dot of a key has keys.
    with contextlib.redirect_stdout(printed), contextlib.suppress(ConfigError, AssertionError):
        command_line.run_experiment(time.time())
    return printed.getvalue().split()
