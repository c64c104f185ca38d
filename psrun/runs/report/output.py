"""Where a report goes: a table on the terminal, a file, or standard output."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from psrun import files
from psrun.errors import PsrunError
from psrun.results.console import folded, line_width
from psrun.runs.report import rows, table

STDOUT = "-"
_ENDLESS = 10_000  # columns


def on_paper(console: Console, records: Sequence[rows.Row], columns: Sequence[str], lines: Sequence[str]) -> str:
    """The text of a table for `console`, and lines below it."""
    terminal = console.is_terminal
    # Without a terminal there is no width; a table of requested columns may be wider than the terminal.
    room = max(console.width, table.least_width(records, columns)) if terminal else None
    out = io.StringIO()
    paper = Console(file=out, width=room or _ENDLESS, force_terminal=terminal, highlight=False)
    for line in table.lines(records, columns, paper, room):
        out.write(f"{line}\n")
    out.write(notes(console, lines))
    return out.getvalue()


def notes(console: Console, lines: Sequence[str]) -> str:
    """The text of lines for `console`, which are folded at its width."""
    out = io.StringIO()
    paper = Console(file=out, width=_ENDLESS, force_terminal=console.is_terminal, highlight=False)
    for line in lines:
        paper.print(folded(Text(line), line_width(console)), soft_wrap=True)
    return out.getvalue()


def write(console: Console, target: str, text: str) -> None:
    """Writes a file, or to standard output. Raises PsrunError if that is not possible."""
    if target == STDOUT:
        to_stdout(text)
        return
    path = Path(target)
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout, which must not be replaced
            path.write_text(text, encoding="utf-8")
        else:
            files.write_atomic(path, text)
    except OSError as error:
        raise PsrunError(f"the report cannot be written to {target}: {error.strerror or error}") from error
    console.print(f"written to {target}", soft_wrap=True, markup=False)


def to_stdout(text: str) -> None:
    """Bypasses sys.stdout, which would buffer unwritable output and fail again at exit."""
    try:
        # A reader such as `head` closes the pipe early.
        with (
            contextlib.suppress(BrokenPipeError),
            open(os.dup(1), "w", encoding="utf-8", errors="backslashreplace") as out,
        ):
            out.write(text)
    except OSError as error:
        raise PsrunError(f"the report cannot be written to standard output: {error.strerror or error}") from error
