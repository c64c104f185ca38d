"""Rows as text: a table for people, CSV and JSON for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat, zip_longest
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.control import strip_control_codes
from rich.text import Text

from psrun.config.groups import key_of
from psrun.runs import states
from psrun.runs.report.rows import FOLDED, SEEDS, VIRTUAL, Row, briefly, shown
from psrun.runs.report.runs import Run
from psrun.runs.report.spread import Spread

_BETWEEN = "  "  # two columns
_STATISTICS = ("mean", "p50", "p95", "p99", "max", "min")  # of something: alone they say nothing


def headings(columns: Sequence[str]) -> dict[str, str]:
    """The last part of each dotted column, with indices after it, if it is unique; else the whole name.

    A part that is not directly below its group has the part before it: 'split.fraction' of 'data.split.fraction'. So
    have the name of a statistic and what is in virtual time: 'staleness.mean', 'virtual.steps_per_s'.
    """
    ends = [_end(column) for column in columns]
    return {column: end if ends.count(end) == 1 else column for column, end in zip(columns, ends)}


def with_short_keys(overrides: Sequence[Sequence[str]]) -> list[str]:
    """The overrides of each job as text, with the headings of their keys in place of the whole keys."""
    short = headings(list(dict.fromkeys(key_of(each) for of_job in overrides for each in of_job)))
    texts = []
    for of_job in overrides:
        parts = [f"{short[key_of(each)]}={each.partition('=')[2]}" for each in of_job]
        texts.append(" ".join(parts))
    return texts


def _end(column: str) -> str:
    parts = column.split(".")
    last = next((place for place in reversed(range(len(parts))) if not parts[place].isdigit()), 0)
    if last > 1 or parts[last] in _STATISTICS or column in VIRTUAL:
        last = max(0, last - 1)
    return ".".join(parts[last:])


@dataclass(frozen=True)
class _Column:
    """A column with its cells. Text may be broken between words; a number may not."""

    name: str
    head: str
    cells: list[str]
    is_text: bool

    @property
    def most(self) -> int:
        """Characters of its longest line."""
        return max(len(self.head), *map(cell_len, self.cells))

    @property
    def least(self) -> int:
        """Characters of its longest word."""
        words = (cell_len(word) for cell in self.cells for word in cell.split())
        return max(len(self.head), *words, 0) if self.is_text else self.most

    def style(self, cell: str) -> str:
        return states.state(cell).style if self.name == "status" else ""


def lines(rows: Sequence[Row], columns: Sequence[str], paper: Console, room: int | None = None) -> list[str]:
    """A line of headings, then one row per run, with numbers aligned to the right.

    A table of rich is laid out anew for each of its cells: thousands of rows take seconds.

    Args:
      paper: gives the styles.
      room: the characters of a line; text is broken between words if necessary. None: no text is broken.
    """
    shown = _columns(rows, columns)
    widths = _widths(shown, room)
    text = [_padded(column, column.head, width, "bold", paper) for column, width in zip(shown, widths)]
    found = [_BETWEEN.join(text)]
    for cells in zip(*(column.cells for column in shown)):
        broken = [_broken(cell, width, paper) for cell, width in zip(cells, widths)]
        styles = [column.style(cell) for column, cell in zip(shown, cells)]
        for parts in zip_longest(*broken, fillvalue=""):
            text = list(map(_padded, shown, parts, widths, styles, repeat(paper)))
            found.append(_BETWEEN.join(text))
    return found


def _widths(shown: Sequence[_Column], room: int | None) -> list[int]:
    """The characters of each column; the widest ones are narrowed to fit `room` characters."""
    widths = [column.most for column in shown]
    for index in sorted(range(len(shown)), key=lambda index: -widths[index]) if room else ():
        too_much = sum(widths) + len(_BETWEEN) * (len(shown) - 1) - (room or 0)
        widths[index] = max(shown[index].least, widths[index] - max(0, too_much))
    return widths


def _broken(cell: str, width: int, paper: Console) -> list[str]:
    """The lines of a cell."""
    if cell.isprintable() and cell_len(cell) <= width:
        return [cell]
    return [line.plain for line in Text(cell).wrap(paper, width)]


def _padded(column: _Column, text: str, width: int, style: str, paper: Console) -> str:
    """A line of a cell, with blanks to the width of its column."""
    blanks = " " * (width - cell_len(text))
    padded = text + blanks if column.is_text else blanks + text
    if not style or not paper.is_terminal:
        return padded
    with paper.capture() as capture:
        paper.print(Text(padded, style=style), end="")
    return capture.get()


def _columns(rows: Sequence[Row], columns: Sequence[str]) -> list[_Column]:
    heads = headings(columns)
    are_words = {column for column in columns if all(isinstance(row.get(column), str | None) for row in rows)}
    return [_Column(column, heads[column], _cells(column, rows), column in are_words) for column in columns]


def _cells(column: str, rows: Sequence[Row]) -> list[str]:
    if column == "run":
        texts = [_run_name(row) for row in rows]
    elif column == FOLDED:
        texts = [_seeds(row) for row in rows]
    else:
        is_key = "." in column  # of the configuration; measured values may look alike
        texts = briefly([row.get(column) for row in rows], distinct=is_key)
    return [strip_control_codes(text) for text in texts]


def _run_name(row: Row) -> str:
    """The name of a run, or those of folded runs: the first whole, the others without its folder.

    CSV and JSON list all names.
    """
    name = shown(row.get("run"))
    if not row.get(FOLDED):
        return name
    first, *others = name.split(", ")
    folder = first.rpartition("/")[0] + "/"
    return _names([first, *(name.removeprefix(folder) for name in others)])


def _seeds(row: Row) -> str:
    """The number of seeds; '1 of 3' if the values are those of one."""
    number = row.get(FOLDED)
    total = row.get(SEEDS)
    return shown(number) if number == total else f"{number} of {total}"


def fitting(rows: Sequence[Row], columns: Sequence[str], spare: Sequence[str], room: int) -> list[str]:
    """The columns that fit `room` characters, without the first columns of `spare` if necessary."""
    visible = list(columns)
    for column in spare:
        if least_width(rows, visible) <= room:
            break
        visible.remove(column)
    return visible


def least_width(rows: Sequence[Row], columns: Sequence[str]) -> int:
    """The minimum number of characters of a line if no word and no number is cut."""
    return sum(column.least for column in _columns(rows, columns)) + len(_BETWEEN) * (len(columns) - 1)


def hidden(columns: Sequence[str], visible: Sequence[str], remedy: str) -> list[str]:
    """A line with the columns that a terminal has no room for; none if it shows all."""
    names = [column for column in columns if column not in visible]
    return [f"hidden columns: {', '.join(names)} ({remedy})"] if names else []


def errors(runs: Iterable[Run]) -> list[str]:
    """One line per error, with all runs that have it."""
    names_by_error: dict[str, list[str]] = {}
    for run in runs:
        if run.error:
            names_by_error.setdefault(run.error, []).append(run.name)
    return [f"{_names(names)}: {error}" for error, names in names_by_error.items()]


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 5 else ""
    return ", ".join(names[:4] if more else names) + more


def as_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """CSV with a header line; a Spread has a second column for its deviation, KEY_sd."""
    wide = _widened(rows, columns)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(wide[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _csv_value(value) for key, value in row.items()} for row in wide)
    return out.getvalue()


def as_json(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A list of objects; a Spread as in CSV."""
    return json.dumps(_widened(rows, columns), indent=2, default=str) + "\n"


def _csv_value(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, type(None))) and not isinstance(value, bool) else shown(value)


def _widened(rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    spread = {column for row in rows for column in columns if isinstance(row.get(column), Spread)}
    wide = []
    for row in rows:
        cells: Row = {}
        for column in columns:
            value = row.get(column)
            cells[column] = value.mean if isinstance(value, Spread) else value
            if column in spread:
                cells[f"{column}_sd"] = value.deviation if isinstance(value, Spread) else None
        wide.append(cells)
    return wide


def summary(runs: Sequence[Run], rows: Sequence[Row]) -> str:
    """The number of runs, and how many of them are folded."""
    many = len(runs) - sum(not row.get(FOLDED) for row in rows)
    one = "1 run" if len(runs) == 1 else f"{len(runs):,} runs"
    return f"{one}; {many:,} that differ only in the seed are folded to mean ± standard deviation" if many else one
