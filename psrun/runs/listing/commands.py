"""`psrun list [ROOT...]`: all runs and sweeps below folders, one line each."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.filesize import decimal
from rich.status import Status
from rich.text import Text

from psrun.errors import ExitCode
from psrun.results import run_state
from psrun.results.console import folded, warner
from psrun.results.run_state import GONE, existing, natural, require_readable
from psrun.runs import states
from psrun.runs.listing import entries
from psrun.runs.listing.entries import Entry, Listing, SweepEntry
from psrun.runs.report import rows
from psrun.runs.report.commands import add_filters, joined
from psrun.runs.report.output import to_stdout
from psrun.runs.report.rows import Row
from psrun.runs.report.table import headings
from psrun.runs.report.table import hidden as hidden_line
from psrun.runs.sweeps.sweep_state import counted

# The beginnings of keys that say how a run was started, not what it trained.
_NOT_COMPARED = ("sweep.", "hydra", *rows.NOT_COMPARED)
_SPARE = ("where", "engine", "size", "age")  # the columns that a terminal hides first
_RIGHT = ("age", "size")
_DIFFERS = "differs"
_MOST_DIFFERS = 40  # characters of what differs, on a terminal, before other columns are hidden for it
_LEAST_DIFFERS = 12
_LEAST_RUN = 20  # characters of a name that is shortened
_MOST_VALUE = 20  # characters of one value among these
_BETWEEN = "  "
_AGES = ((86400 * 7, "w"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_GONE_SHOWN = 5  # that are resumed by a command below the list
_SHOW_EVERY = 50  # runs that are read
_IN_JSON = {"age": "age_s", "size": "bytes"}
_COLORS = {"dim": 2, "green": 32, "red": 31, "yellow": 33, "cyan": 36}


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun list ARGUMENTS`.

    Raises:
      ConfigError: a folder does not exist, or a key or a condition is wrong.
      PsrunError: standard output cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(joined(arguments))
    require_readable(run_state.RUNS)
    roots = [existing(root) if root != run_state.RUNS else root for root in options.root or [run_state.RUNS]]
    lines = _lines(roots, with_jobs=options.jobs)
    if lines and (options.where or options.sort):
        lines = _selected(lines, options.where, options.sort)
    if options.json:
        to_stdout(json.dumps([_record(line) for line in lines], indent=2) + "\n")
    elif lines:
        to_stdout(_table(lines, Console(highlight=False)))
    else:
        to_stdout(f"no runs below {', '.join(map(str, roots))}\n")
    return ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun list", description=__doc__.partition(": ")[2])
    text = f"folders of runs and sweeps (default {run_state.RUNS}/)"
    parser.add_argument("root", nargs="*", type=Path, help=text)
    add_filters(parser)
    parser.add_argument("--jobs", action="store_true", help="also a line for each job of a sweep")
    parser.add_argument("--json", action="store_true", help="write JSON to standard output instead of the table")
    return parser


@dataclass(frozen=True)
class _Line:
    """A run or a sweep in the list.

    Attributes:
      row: as `entries.shown`.
      is_job: whether it is a job of a sweep above it.
      differs: the overrides that not all of the other runs and sweeps, or jobs of its sweep, have.
      more: the values of other columns that conditions and the order name.
    """

    entry: Entry | SweepEntry
    row: Row
    is_job: bool
    differs: Mapping[str, str]
    more: Row = field(default_factory=dict)

    @property
    def quick(self) -> Row:
        """The values that are at hand; all others are computed for each run."""
        return {**self.row["metrics"], **self.row}

    @property
    def everything(self) -> Row:
        return {**self.entry.everything, **self.quick}


def _lines(roots: Sequence[Path], *, with_jobs: bool) -> list[_Line]:
    """The runs and sweeps below the roots, each once, sorted by name."""
    console = Console(stderr=True, highlight=False)
    lines: dict[str, _Line] = {}
    unanswered: dict[str, None] = {}
    for root in roots:
        with console.status(f"reading {root}") as status:

            def on_read(number: int, root: Path = root, status: Status = status) -> None:
                if number % _SHOW_EVERY == 0:
                    status.update(f"reading {root}: {number} runs")

            listing = entries.below(root, on_read)
        unanswered |= dict.fromkeys(entry.unanswered for entry in listing.all_runs if entry.unanswered)
        for line in _below(listing, root, with_jobs=with_jobs):
            lines.setdefault(os.path.abspath(line.entry.path), line)
    for text in unanswered:
        warner(console)(f"{text}; runs that wait there are shown as they ended")
    return sorted(lines.values(), key=lambda line: natural(line.row["run"]))


def _below(listing: Listing, root: Path, *, with_jobs: bool) -> Iterator[_Line]:
    """The lines of the runs and sweeps below a root."""
    alone: list[Entry | SweepEntry] = [*listing.runs, *listing.sweeps]
    groups: list[tuple[Sequence[Entry | SweepEntry], bool]] = [(alone, False)]
    if with_jobs:
        groups += [(sweep.jobs, True) for sweep in listing.sweeps]
    for together, are_jobs in groups:
        for entry, differs in zip(together, _differing(together)):
            name = entry.path[len(str(root)) + 1 :] or root.resolve().name
            yield _Line(entry, entries.shown(entry.row, name, entry.path), are_jobs, differs)


def _differing(together: Sequence[Entry | SweepEntry]) -> list[dict[str, str]]:
    """Of the overrides of each run, those that not all have; without a model that its own column shows."""
    common = set(together[0].overrides.items()) if together else set()
    for entry in together:
        common &= set(entry.overrides.items())
    found = []
    for entry in together:
        differs = {}
        for key, value in entry.overrides.items():
            has_column = key == "model" and entry.row["model"] is not None
            if (key, value) in common or has_column or key.startswith(_NOT_COMPARED):
                continue
            differs[key] = value
        found.append(differs)
    return found


def _selected(lines: Sequence[_Line], where: Sequence[str], sort: Sequence[str]) -> list[_Line]:
    """The lines that meet all conditions, sorted. Raises ConfigError as `psrun report` does."""
    named = [*map(rows.key_of, where), *(key.removeprefix("-") for key in sort)]
    values = [line.quick for line in lines]
    if not all(any(key in row for row in values) for key in named):
        values = [line.everything for line in lines]
    keys = [rows.full_key(key, values) for key in named]
    line_of = {id(row): line for row, line in zip(values, lines)}
    chosen = rows.ordered(rows.matching(values, where), sort)
    return [replace(line_of[id(row)], more={key: row.get(key) for key in keys}) for row in chosen]


def _record(line: _Line) -> Row:
    """A line as JSON has it."""
    named = {_IN_JSON.get(name, name): value for name, value in line.row.items()}
    more = {key: value for key, value in line.more.items() if key not in line.quick}
    return {**named, _DIFFERS: line.differs, **more}


def _table(lines: Sequence[_Line], console: Console) -> str:
    """The lines as text; on a terminal without the columns for which there is no room."""
    short = headings(_most_varied_first(lines))
    cells = [_cells(line, short) for line in lines]
    columns = [name for name in dict.fromkeys(key for each in cells for key in each) if any(map(_has(name), cells))]
    heads = headings(columns)
    if console.is_terminal and _too_wide(_widths(cells, heads), console.width) > 0:
        cells = [{**each, "status": _status(line.row, short=True)} for line, each in zip(lines, cells)]
    widths = _widths(cells, heads)
    hidden: list[str] = []
    if console.is_terminal:
        _fit(widths, console.width)
        cells = [_cut(each, widths) for each in cells]
        lines_below = hidden_line(columns, list(widths), "a wider terminal or --json shows them")
        hidden = [folded(Text(line), console.width).plain for line in lines_below]
    head = _joined(heads, widths)
    if console.is_terminal:
        head = f"\x1b[1m{head}\x1b[0m"
    body = [_joined(each, widths, styled=console.is_terminal) for each in cells]
    return "\n".join([head, *body, _summary(lines), *hidden, *_gone(lines)]) + "\n"


def _widths(cells: Sequence[Mapping[str, str]], heads: Mapping[str, str]) -> dict[str, int]:
    """The characters of each column."""
    widths = {}
    for name, head in heads.items():
        widths[name] = max(cell_len(head), *(cell_len(each.get(name, "")) for each in cells))
    return widths


def _too_wide(widths: Mapping[str, int], room: int) -> int:
    """The characters of a line for which there is no room; negative if there is more."""
    return sum(widths.values()) + len(_BETWEEN) * (len(widths) - 1) - room


def _fit(widths: dict[str, int], room: int) -> None:
    """Narrows or removes columns until all fit `room` characters, or none is left that may be removed."""

    def over() -> int:
        return _too_wide(widths, room)

    def spare() -> int:
        return max(0, widths["run"] - _LEAST_RUN)

    if over() > 0 and _DIFFERS in widths:
        widths[_DIFFERS] = min(widths[_DIFFERS], _MOST_DIFFERS)
    for name in _SPARE:
        if over() > 0:
            widths.pop(name, None)
    if over() > 0 and _DIFFERS in widths:
        widths[_DIFFERS] = min(widths[_DIFFERS], max(_LEAST_DIFFERS, widths[_DIFFERS] - over()))
    for name in (_DIFFERS, "model", "name"):
        if over() > spare():
            widths.pop(name, None)
    widths["run"] -= min(spare(), max(0, over()))


def _cut(cells: Mapping[str, str], widths: Mapping[str, int]) -> dict[str, str]:
    """The cells, with what differs and the name of the run in as many characters as their columns have."""
    text = cells.get(_DIFFERS, "")
    width = widths.get(_DIFFERS, 0)
    if cell_len(text) > width > 0:
        text = set_cell_size(text, width - 1).rstrip() + "…"
    return {**cells, _DIFFERS: text, "run": _shortened(cells["run"], widths["run"])}


def _shortened(name: str, width: int) -> str:
    """A name without its middle: runs are named by their end, too."""
    if cell_len(name) <= width:
        return name
    before = width // 3
    after = width - 1 - before
    return f"{set_cell_size(name, before)}…{name[-after:]}"


def _most_varied_first(lines: Sequence[_Line]) -> list[str]:
    """The keys of what differs, those with the most values first: a terminal may cut the others."""
    values: dict[str, set[str]] = {}
    for line in lines:
        for key, value in line.differs.items():
            values.setdefault(key, set()).add(value)
    return sorted(values, key=lambda key: (-len(values[key]), len(key)))


def _gone(lines: Sequence[_Line]) -> list[str]:
    """How the runs and sweeps that were killed are resumed, a line each."""
    gone = [line for line in lines if line.row["status"] == GONE and not line.is_job]
    commands = []
    for line in gone[:_GONE_SHOWN]:
        command = run_state.resume_command(Path(line.entry.path))
        if command:
            commands.append(f"{line.row['run']} was killed; to resume: {command}")
    if len(gone) > _GONE_SHOWN:
        commands.append(f"and {len(gone) - _GONE_SHOWN:,} more")
    return commands


def _has(name: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda cells: bool(cells.get(name))


def _cells(line: _Line, short: Mapping[str, str]) -> dict[str, str]:
    """The texts of a line by column, in the order of the columns.

    Args:
      short: the names of keys that differ, as `headings` shortens them, in the order to show them.
    """
    row = line.row
    differs = [f"{name}={_end(line.differs[key])}" for key, name in short.items() if key in line.differs]
    return {
        "run": f"  {row['run']}" if line.is_job else row["run"],
        "name": row["name"] or "",
        "status": _status(row),
        "metric": _metric(row),
        **{key: rows.shown(value) for key, value in line.more.items() if key not in line.row and key != row["metric"]},
        "model": row["model"] or "",
        _DIFFERS: " ".join(differs),
        "age": age(row["age"]),
        "size": decimal(row["size"]),
        "engine": row["engine"] or "",
        "where": row["where"] or "",
    }


def _end(value: str) -> str:
    """A value, or the end of a long one, in which paths differ."""
    if len(value) <= _MOST_VALUE:
        return value
    return f"…{value[1 - _MOST_VALUE :]}"


def _metric(row: Row) -> str:
    """The metric of a run with its value; 'best val_auc 0.97' if it is the one of the best checkpoint."""
    name = row["metric"]
    if not name:
        return ""
    of_checkpoint = row.get("best_checkpoint") or {}
    title = f"best {name}" if of_checkpoint.get("metric") == name else name
    return f"{title} {rows.shown(row['value'])}"


def _status(row: Row, *, short: bool = False) -> str:
    """The status; of a sweep with its jobs by status, or `short` with the number of those that are completed."""
    jobs = row.get("jobs", {})
    counts = counted(jobs)
    if short and jobs:
        counts = f"{jobs.get('completed', 0)} of {sum(jobs.values())}"
    return f"{row['status']} ({counts})" if counts else row["status"]


def age(seconds: float) -> str:
    """A time in its largest unit: '3 d'."""
    size, unit = next((each for each in _AGES if seconds >= each[0]), _AGES[-1])
    return f"{seconds / size:.0f} {unit}"


def _joined(cells: Mapping[str, str], widths: Mapping[str, int], *, styled: bool = False) -> str:
    parts = []
    for name, width in widths.items():
        text = cells.get(name, "")
        blanks = " " * (width - cell_len(text))
        if styled and name == "status":
            text = _colored(text)
        parts.append(blanks + text if name in _RIGHT else text + blanks)
    return _BETWEEN.join(parts).rstrip()


def _colored(status: str) -> str:
    """A status, with the jobs in brackets if there are any, in the color of the status."""
    word = status.partition(" (")[0]
    color = _COLORS.get(states.state(word).style)
    return status if color is None else f"\x1b[{color}m{status}\x1b[0m"


def _summary(lines: Sequence[_Line]) -> str:
    counts = Counter("sweep" if "jobs" in line.row else "job" if line.is_job else "run" for line in lines)
    parts = [f"{number:,} {what}{'s' if number > 1 else ''}" for what, number in sorted(counts.items(), reverse=True)]
    return ", ".join(parts)
