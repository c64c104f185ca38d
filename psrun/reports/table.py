"""Rows as text: a table for people, CSV and JSON for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from psrun.reports.rows import FOLDED, Row, Spread, shown
from psrun.reports.runs import Run

_STYLES = {"completed": "green", "failed": "red", "interrupted": "yellow", "running": "cyan", "unknown": "red"}


def headings(columns: Sequence[str]) -> dict[str, str]:
    """The last part of each dotted column, where no other one ends alike."""
    ends = [column.rpartition(".")[2] for column in columns]
    return {column: end if ends.count(end) == 1 else column for column, end in zip(columns, ends)}


def table(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    """A row a run; numbers to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    heads = headings(columns)
    for column in columns:
        values = [row.get(column) for row in rows]
        text = all(isinstance(value, (str, type(None))) for value in values)
        made.add_column(heads[column], justify="left" if text else "right", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(column, row) for column in columns))
    return made


def _cell(column: str, row: Row) -> Text:
    text = shown(row.get(column))
    if column == "run" and row.get(FOLDED):  # CSV and JSON name them all
        text = _names(text.split(", "))
    return Text(text, style=_STYLES.get(text, "") if column == "status" else "")


def fitting(console: Console, rows: Sequence[Row], columns: Sequence[str], spare: Sequence[str]) -> list[str]:
    """The columns, without as many of `spare`, the first of them first, as there is no room for on a terminal."""
    kept = list(columns)
    if not console.is_terminal:
        return kept
    room = console.options.update(max_width=10_000)
    for column in [*spare, None]:
        if console.measure(table(rows, kept), options=room).maximum <= console.width or column is None:
            break
        kept.remove(column)
    return kept


def errors(runs: Iterable[Run]) -> list[str]:
    """What went wrong, a line for all runs of which it is the same."""
    told: dict[str, list[str]] = {}
    for run in runs:
        if run.error:
            told.setdefault(run.error, []).append(run.name)
    return [f"{_names(names)}: {error}" for error, names in told.items()]


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 5 else ""
    return ", ".join(names[:4] if more else names) + more


def as_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """With a line of headings. Raises nothing; a Spread has a column for its deviation, KEY_sd."""
    wide = _widened(rows, columns)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(wide[0]) if wide else list(columns), lineterminator="\n")
    writer.writeheader()
    for row in wide:
        writer.writerow({key: _csv_value(value) for key, value in row.items()})
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
        made: Row = {}
        for column in columns:
            value = row.get(column)
            made[column] = value.mean if isinstance(value, Spread) else value
            if column in spread:
                made[f"{column}_sd"] = value.deviation if isinstance(value, Spread) else None
        wide.append(made)
    return wide


def summary(runs: Sequence[Run], rows: Sequence[Row]) -> str:
    """How many runs and rows there are: '24 runs, 12 of them in rows of several seeds'."""
    many = sum(row.get(FOLDED) or 0 for row in rows)
    one = "1 run" if len(runs) == 1 else f"{len(runs):,} runs"
    return f"{one}; {many:,} that differ only in the seed are folded to mean ± standard deviation" if many else one
