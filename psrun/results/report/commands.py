"""`psrun report FOLDER...`: runs and sweeps side by side, as a table, CSV, JSON, or a page with charts."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from psrun import files
from psrun.errors import ConfigError, ExitCode, PsrunError
from psrun.results.report import page, rows, runs, table
from psrun.results.run_state import printable

_STDOUT = "-"
_ENDLESS = 10_000  # columns


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun report ARGUMENTS`.

    Raises:
      ConfigError: a folder holds no run, or a key, a condition or a column is unknown.
      PsrunError: an output cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(_joined(arguments))
    report = _Report(options.folder, options.where, options.sort)
    columns = report.named_columns(options.columns) if options.columns is not None else []
    # Standard output holds nothing but the data.
    console = Console(highlight=False, stderr=_STDOUT in (options.csv, options.json, options.html))
    for target, write in ((options.csv, table.as_csv), (options.json, table.as_json)):
        if target is not None:
            records, fields = report.folded(columns or report.all_columns, bool(options.fold_seeds))
            _write(console, target, write(records, fields))
    if options.html is not None:
        titles = [printable(folder) for folder in options.folder]
        _write(console, options.html, page.render(report.runs, report.axes, named=titles))
    if not any((options.csv, options.json, options.html)):
        _to_stdout(report.as_table(console, columns, fold=options.fold_seeds is not False))
    return ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun report", description=__doc__.partition(": ")[2])
    parser.add_argument("folder", nargs="+", type=Path, help="a run, a sweep, or a folder of these, such as runs/")
    text = "filter runs, such as 'num_workers=2', 'val_auc>0.7', 'status!=failed'; may be repeated"
    parser.add_argument("--where", action="append", default=[], metavar="CONDITION", help=text)
    text = "sort by column or key; -KEY: descending; may be repeated"
    parser.add_argument("--sort", action="append", default=[], metavar="KEY", help=text)
    parser.add_argument("--columns", metavar="KEY,...", help="columns to show; default: differing keys and all results")
    text = "one row for runs that differ only in the seed (default for the table)"
    parser.add_argument("--fold-seeds", action=argparse.BooleanOptionalAction, help=text)
    for name in ("csv", "json", "html"):
        what = "an offline page with charts" if name == "html" else f"{name.upper()} (-: standard output)"
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write {what} instead of the table")
    return parser


def _joined(arguments: Sequence[str]) -> list[str]:
    """Joins `--sort` and its value: argparse parses the value of `--sort -val_auc` as an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--sort":
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


class _Report:
    """The runs in folders that meet all conditions, sorted.

    Attributes:
      rows: of the runs, in their order.
      axes: the keys in which the runs differ.
      metrics: the names of their metrics, those of evaluations first.
    """

    def __init__(self, folders: Sequence[Path], where: Sequence[str], sort: Sequence[str]) -> None:
        everything = runs.find(folders)
        records = [rows.row(run) for run in everything]
        conditions = [rows.condition(text, records) for text in where]
        matching = [row for row in records if all(holds(row) for holds in conditions)]
        if not matching:
            message = f"none of {len(everything)} runs matches --where {', '.join(where)}; use another condition"
            raise ConfigError(message)
        by_name = {run.name: run for run in everything}
        self.rows = rows.ordered(matching, sort)
        self.runs = [by_name[row["run"]] for row in self.rows]
        self.axes = rows.axes(self.runs)
        self.metrics = rows.metric_names(self.runs)
        self._sort = sort

    def named_columns(self, text: str) -> list[str]:
        """The columns in `text`, as of --columns."""
        return ["run", *(rows.full_key(key.strip(), self.rows) for key in text.split(",") if key.strip() != "run")]

    @property
    def all_columns(self) -> list[str]:
        return ["run", "folder", *self.axes, "status", *self.metrics, *rows.MEASURED, "error"]

    def folded(self, columns: list[str], fold: bool) -> tuple[list[rows.Row], list[str]]:
        """Rows and columns; with `fold`, runs that differ only in the seed are one row."""
        records = rows.folded(self.rows, rows.groups(self.runs)) if fold else self.rows
        if len(records) == len(self.rows):
            return self.rows, columns
        columns = [rows.FOLDED if column == rows.SEED else column for column in columns if column != "folder"]
        return rows.ordered(records, self._sort), columns

    def as_table(self, console: Console, chosen: list[str], *, fold: bool) -> str:
        """The text for `console`: the table, and lines about it."""
        columns = chosen
        if not chosen:
            metrics, measured = ([n for n in names if self._has_values(n)] for names in (self.metrics, rows.MEASURED))
            columns = ["run", "status", *metrics, *self.axes, *measured]
        records, columns = self.folded(columns, fold)
        terminal = console.is_terminal
        visible = columns
        if terminal and not chosen:
            visible = table.fitting(records, columns, self._spare(columns), console.width)
        # Without a terminal there is no width; a table of requested columns may be wider than the terminal.
        room = max(console.width, table.least_width(records, visible)) if terminal else None
        lines = [table.summary(self.runs, records)]
        if hidden := [column for column in columns if column not in visible]:
            lines.append(f"hidden columns: {', '.join(hidden)} (choose columns with --columns; --csv writes all)")
        out = io.StringIO()
        paper = Console(file=out, width=room or _ENDLESS, force_terminal=terminal, highlight=False)
        paper.print(table.table(records, visible, room))
        for line in [*lines, *table.errors(self.runs)]:
            paper.print(line, soft_wrap=True, markup=False)
        return out.getvalue()

    def _has_values(self, column: str) -> bool:
        """Whether a column has a value; for recoveries, whether there were any."""
        return any(row.get(column) if column == "recoveries" else row.get(column) is not None for row in self.rows)

    def _spare(self, columns: Sequence[str]) -> list[str]:
        """The columns that may be hidden, the least important first; run, status and two metrics stay."""
        overridden = {key for run in self.runs for key in run.overrides}
        explicit = [key for key in self.axes if key in overridden]
        implied = [key for key in self.axes if key not in overridden]
        evaluated = [name for name in self.metrics if name.startswith("val_")]
        trained = [name for name in self.metrics if name not in evaluated]
        essential = (evaluated or trained)[:2]
        order = [
            *reversed(implied), "wall_s", "steps", "steps_per_s", *reversed(trained), *reversed(evaluated),
            "recoveries", "examples_per_s", *reversed(explicit), rows.FOLDED,
        ]  # fmt: skip
        return [column for column in order if column in columns and column not in essential]


def _write(console: Console, target: str, text: str) -> None:
    """Writes a file, or to standard output. Raises PsrunError if that is not possible."""
    if target == _STDOUT:
        _to_stdout(text)
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


def _to_stdout(text: str) -> None:
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
