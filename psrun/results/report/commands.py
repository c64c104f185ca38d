"""`psrun report FOLDER...`: runs and sweeps side by side, as a table, CSV, JSON, or a page with charts."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from psrun import files
from psrun.errors import ConfigError, ExitCode, PsrunError
from psrun.results.report import page, rows, runs, table
from psrun.results.run_state import printable

_STDOUT, _ENDLESS = "-", 10_000


@dataclass(frozen=True)
class _Report:
    """The content of a report: runs and their rows, the axes in which runs differ, and the sort keys of the rows."""

    runs: list[runs.Run]
    rows: list[rows.Row]
    axes: list[str]
    sort: list[str]


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun report ARGUMENTS`.

    Raises:
      ConfigError: a folder holds no run, or a key, a condition or a column is unknown.
      PsrunError: an output cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(_joined(arguments))
    report = _read(options.folder, options.where, options.sort)
    columns = _columns(options.columns, report)
    # Standard output holds nothing but the data.
    console = Console(highlight=False, stderr=_STDOUT in (options.csv, options.json, options.html))
    for name, write in (("csv", table.as_csv), ("json", table.as_json)):
        target = getattr(options, name)
        if target is not None:
            records, fields = _folded(report, columns or _all_columns(report), bool(options.fold_seeds))
            _write(console, target, write(records, fields))
    if options.html is not None:
        titles = [printable(folder) for folder in options.folder]
        _write(console, options.html, page.render(report.runs, report.axes, named=titles))
    if not any((options.csv, options.json, options.html)):
        _print(console, report, columns, fold=options.fold_seeds is not False)
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


def _read(folders: Sequence[Path], where: Sequence[str], sort: Sequence[str]) -> _Report:
    found_runs = runs.find(folders)
    by_name = {run.name: run for run in found_runs}
    records = [rows.row(run) for run in found_runs]
    conditions = [rows.condition(text, records) for text in where]
    matching = [row for row in records if all(holds(row) for holds in conditions)]
    if not matching:
        raise ConfigError(f"none of {len(found_runs)} runs matches --where {', '.join(where)}; use another condition")
    matching = rows.ordered(matching, sort)
    remaining = [by_name[row["run"]] for row in matching]
    return _Report(remaining, matching, rows.axes(remaining), list(sort))


def _columns(text: str | None, report: _Report) -> list[str]:
    """The requested columns; none without a request."""
    if text is None:
        return []
    return ["run", *(rows.found_key(key.strip(), report.rows) for key in text.split(",") if key.strip() != "run")]


def _all_columns(report: _Report) -> list[str]:
    return ["run", "folder", *report.axes, "status", *_metrics(report), *rows.MEASURED, "error"]


def _metrics(report: _Report) -> list[str]:
    names = dict.fromkeys(name for run in report.runs for name in rows.metrics(run))
    return sorted(names, key=lambda name: not name.startswith("val_"))


def _folded(report: _Report, columns: list[str], fold: bool) -> tuple[list[rows.Row], list[str]]:
    """Rows and columns; with `fold`, runs that differ only in the seed are one row."""
    if not fold:
        return report.rows, columns
    records = rows.folded(report.rows, rows.groups(report.runs))
    if len(records) == len(report.rows):
        return report.rows, columns
    records = rows.ordered(records, report.sort)
    return records, [rows.FOLDED if column == rows.SEED else column for column in columns if column != "folder"]


def _has_values(report: _Report, column: str) -> bool:
    """Whether a column has a value; for recoveries, whether there were any."""
    return any(row.get(column) if column == "recoveries" else row.get(column) is not None for row in report.rows)


def _print(console: Console, report: _Report, chosen: list[str], *, fold: bool) -> None:
    measured = [name for name in rows.MEASURED if _has_values(report, name)]
    columns = chosen or [
        "run",
        "status",
        *(n for n in _metrics(report) if _has_values(report, n)),
        *report.axes,
        *measured,
    ]
    records, columns = _folded(report, columns, fold)
    spare = [] if chosen else _spare(report, columns)
    visible = table.fitting(records, columns, spare, console.width) if console.is_terminal else columns
    # Without a terminal there is no width; a table of requested columns may be wider than the terminal.
    room = max(console.width, table.least_width(records, visible)) if console.is_terminal else None
    lines = [table.summary(report.runs, records), *_left_out(columns, visible), *table.errors(report.runs)]
    try:
        _to_stdout(_rendered(console, table.table(records, visible, room), lines, room))
    except OSError as error:
        raise _cannot("standard output", error) from error


def _rendered(console: Console, shown: Table, lines: Sequence[str], room: int | None) -> str:
    """The output of `console`, in lines of `room` characters; None: of any length."""
    terminal, out = console.is_terminal, io.StringIO()
    paper = Console(
        file=out,
        width=room or _ENDLESS,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        highlight=False,
    )
    paper.print(shown)
    for line in lines:
        paper.print(line, soft_wrap=True, markup=False)
    return out.getvalue()


def _spare(report: _Report, columns: Sequence[str]) -> list[str]:
    """The columns that may be hidden, the least important first; run, status and two metrics stay."""
    overridden = {key for run in report.runs for key in run.overrides}
    metrics = _metrics(report)
    trained = [name for name in metrics if not name.startswith("val_")]
    evaluated = [name for name in metrics if name not in trained]
    essential = (evaluated or trained)[:2]
    implied, explicit = [
        [key for key in report.axes if (key in overridden) == is_override] for is_override in (False, True)
    ]
    order = [
        *reversed(implied), "wall_s", "steps", "steps_per_s", *reversed(trained), *reversed(evaluated), "recoveries",
        "examples_per_s", *reversed(explicit), rows.FOLDED,
    ]  # fmt: skip
    return [column for column in order if column in columns and column not in essential]


def _left_out(columns: Sequence[str], visible: Sequence[str]) -> list[str]:
    hidden = [column for column in columns if column not in visible]
    return [f"hidden columns: {', '.join(hidden)} (choose columns with --columns; --csv writes all)"] if hidden else []


def _write(console: Console, target: str, text: str) -> None:
    """Writes a file, or to standard output. Raises PsrunError if that is not possible."""
    path = Path(target)
    try:
        if target == _STDOUT:
            _to_stdout(text)
        elif path.exists() and not path.is_file():  # such as /dev/stdout, which must not be replaced
            path.write_text(text, encoding="utf-8")
        else:
            files.write_atomic(path, text)
    except OSError as error:
        raise _cannot("standard output" if target == _STDOUT else target, error) from error
    if target != _STDOUT:
        console.print(f"written to {target}", soft_wrap=True, markup=False)


def _to_stdout(text: str) -> None:
    """Bypasses sys.stdout, which would buffer unwritable output and fail again at exit."""
    # A reader such as `head` closes the pipe early.
    with contextlib.suppress(BrokenPipeError), open(os.dup(1), "w", encoding="utf-8", errors="backslashreplace") as out:
        out.write(text)


def _cannot(what: str, error: OSError) -> PsrunError:
    return PsrunError(f"the report cannot be written to {what}: {error.strerror or error}")
