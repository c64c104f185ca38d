"""`psrun mark RUN [+]MARK -MARK...`: marks a run or a sweep, or removes marks; lists filter by them."""

from __future__ import annotations

import argparse

from rich.console import Console

from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError, ExitCode
from psrun.results import found, labels
from psrun.results.run_state import printable

_USAGE = "psrun mark RUN [+]MARK... -MARK..."


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun mark ARGUMENTS`.

    Raises:
      ConfigError: there is no such run, a mark is not a word, or the run does not have a mark to remove.
      PsrunError: the file of marks cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    if any(each in ("-h", "--help") for each in arguments) or len(arguments) < 2 or arguments[0].startswith("-"):
        arguments = [each for each in arguments if each in ("-h", "--help")]  # argparse takes -MARK for an option
        _parser().parse_args(arguments)
    folder = found.resolved_run(arguments[0])
    changes = arguments[1:]
    add = {each.removeprefix("+") for each in changes if not each.startswith("-")}
    remove = {each.removeprefix("-") for each in changes if each.startswith("-")}
    _check(folder_marks=set(labels.read(folder).marks), add=add, remove=remove)
    marks = " ".join(labels.mark(folder, add=add, remove=remove).marks) or "no marks"
    Console(highlight=False).print(f"{printable(folder)}: {marks}", markup=False, soft_wrap=True)
    return ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun mark", usage=_USAGE, description=__doc__.partition(": ")[2])
    parser.add_argument("run", metavar="RUN", help=found.HELP)
    text = "a word: MARK or +MARK adds it, -MARK removes it"
    parser.add_argument("marks", nargs="+", metavar="MARK", help=text)
    return parser


def _check(*, folder_marks: set[str], add: set[str], remove: set[str]) -> None:
    for each in sorted(add | remove):
        if not labels.is_mark(each):
            raise ConfigError(f"'{each}' is no mark: use letters, digits and . : / _ -, such as +baseline")
    if both := sorted(add & remove):
        raise ConfigError(f"'{both[0]}' is to be added and removed; name it once")
    for each in sorted(remove - folder_marks):
        guess = did_you_mean(each, folder_marks) if folder_marks else " It has no marks."
        raise ConfigError(f"the run has no mark '{each}'.{guess}")
