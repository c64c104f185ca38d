"""`psrun note RUN TEXT`: adds a note to a run or a sweep, which lists and reports show."""

from __future__ import annotations

import argparse

from rich.console import Console

from psrun.errors import ExitCode
from psrun.results import found, labels
from psrun.results.run_state import printable


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun note ARGUMENTS`.

    Raises:
      ConfigError: there is no such run, or the text is empty.
      PsrunError: the file of notes cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(arguments)
    folder = found.resolved_run(options.run)
    number = len(labels.note(folder, " ".join(options.text)).notes)
    Console(highlight=False).print(f"note {number} of {printable(folder)}", markup=False, soft_wrap=True)
    return ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun note", description=__doc__.partition(": ")[2])
    parser.add_argument("run", metavar="RUN", help=found.HELP)
    parser.add_argument("text", nargs="+", metavar="TEXT", help="the note")
    return parser
