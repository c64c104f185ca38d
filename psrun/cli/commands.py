"""The commands of psrun: the core's own, and those that its parts offer. All else is Hydra's and runs an experiment."""

from __future__ import annotations

from collections.abc import Callable

from psrun import parts
from psrun.errors import ExitCode

Command = Callable[[list[str]], ExitCode]
_CORE = {"checkpoint": "psrun.checkpoint.commands:main", "init": "psrun.cli.init:main"}
# Options that a part carries out. They are no words, and no command line begins with them by mistake.
MULTIRUN = "--multirun"
COMPLETION = "--shell-completion"


def find(word: str) -> Command | None:
    """The function of a command, which takes the arguments after the word; None if there is no such command."""
    name = _CORE.get(word) or parts.command(word)
    if name is None:
        return None
    command: Command = parts.load(name)
    return command


def words() -> list[str]:
    """The words of all commands, in the order of the alphabet."""
    found = {*_CORE}
    for part in parts.every():
        found.update(part.commands)
    return sorted(word for word in found if not word.startswith("-"))


def words_of_others() -> list[str]:
    """The words of the commands of other packages, in the order of the alphabet."""
    found: set[str] = set()
    for part in parts.others():
        found.update(part.commands)
    return sorted(found)
