"""`psrun report FOLDER...`: runs and sweeps side by side, or against others: a table, CSV, JSON, or a page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from psrun import files
from psrun.errors import ConfigError, ExitCode
from psrun.results import run_state
from psrun.results.run_state import below, existing, printable
from psrun.runs.report import comparison, output, page, predicted, ranking, rows, runs, table


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun report ARGUMENTS`.

    Raises:
      ConfigError: a folder holds no run, or a key, a condition or a column is unknown.
      PsrunError: an output cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(joined(arguments))
    _check(options)
    folders = [run_state.resolve(word) for word in options.folder]
    against = [run_state.resolve(word) for word in options.against]
    report = _Report([*folders, *against], options.where, options.sort, of_all_keys=options.columns is not None)
    columns = report.named_columns(options.columns) if options.columns is not None else []
    compared = report.compared(against, options.metric, pair=not options.unpaired) if against else None
    # Standard output holds nothing but the data.
    console = Console(highlight=False, stderr=output.STDOUT in (options.csv, options.json, options.html))
    for target, write in ((options.csv, table.as_csv), (options.json, table.as_json)):
        if target is not None and compared:
            output.write(console, target, write(*comparison.records(compared)))
        elif target is not None:
            records, fields = report.folded(report.for_programs(columns), bool(options.fold_seeds))
            output.write(console, target, write(records, fields))
    if options.html is not None:
        titles = [printable(folder) for folder in (*folders, *against)]
        html = page.render(
            report.runs,
            report.rows,
            report.axes,
            ranking=report.ranking,
            named=titles,
            predictions=report.predictions,
            compared=compared,
        )
        output.write(console, options.html, html)
    if not any((options.csv, options.json, options.html)):
        if compared:
            output.to_stdout(_comparisons(compared, console))
        else:
            output.to_stdout(report.as_table(console, columns, fold=options.fold_seeds is not False))
    return ExitCode.DONE


def _comparisons(compared: comparison.Comparisons, console: Console) -> str:
    """The text for `console`: the table of comparisons, and the notes on it."""
    records, columns, notes = comparison.shown(compared)
    visible = columns
    if console.is_terminal:
        visible = table.fitting(records, columns, comparison.SPARE, console.width)
    hidden = table.hidden(columns, visible, "--csv writes all")
    return output.on_paper(console, records, visible, [*notes, *hidden])


def _predictions(predictions: predicted.Predictions, console: Console) -> str:
    """The text for `console`: predictions beside what was measured, and notes on them; empty without predictions."""
    records, columns, notes = predicted.shown(predictions)
    if not records:
        return output.notes(console, notes)
    visible = columns
    if console.is_terminal:
        visible = table.fitting(records, columns, [each for each in predicted.SPARE if each in columns], console.width)
    notes += table.hidden(columns, visible, "--json has all")
    return f"\nPredicted and measured\n{output.on_paper(console, records, visible, notes)}"


def _check(options: argparse.Namespace) -> None:
    """Raises ConfigError for options that do nothing without --against."""
    named = {"--metric": options.metric, "--unpaired": options.unpaired}
    if not options.against and (idle := [name for name, value in named.items() if value]):
        raise ConfigError(f"{' and '.join(idle)}: only with --against; name the runs to compare with")


def _parser() -> argparse.ArgumentParser:
    # Help of 24 lines fits on a screen.
    usage = "psrun report RUN... [--against RUN...] [OPTION...]"
    description = "Show runs and sweeps side by side: a table, CSV, JSON, or a page."
    parser = argparse.ArgumentParser(prog="psrun report", usage=usage, description=description)
    parser.add_argument("folder", nargs="+", metavar="RUN", help="a run, a sweep, or a folder of these")
    add_filters(parser)
    parser.add_argument("--columns", metavar="KEY,...", help="columns; default: differing keys and results")
    text = "one row for all seeds (default: table)"
    parser.add_argument("--fold-seeds", action=argparse.BooleanOptionalAction, help=text)
    text = "compare with these runs, paired by seed"
    parser.add_argument("--against", nargs="+", default=[], metavar="RUN", help=text)
    text = "compare this metric, not the one that ranks; repeat"
    parser.add_argument("--metric", action="append", default=[], help=text)
    parser.add_argument("--unpaired", action="store_true", help="compare means; runs need no common seeds")
    for name in ("csv", "json", "html"):
        what = "an offline page with charts" if name == "html" else f"{name.upper()} (-: standard output)"
        parser.add_argument(f"--{name}", type=_file, metavar="FILE", help=f"write {what} instead of the table")
    return parser


def _file(text: str) -> str:
    return str(files.on_disk(text))


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Adds --where and --sort; see `joined`."""
    text = "filter runs, such as 'num_workers=2', 'val_auc>0.7', 'status!=failed'; repeat"
    parser.add_argument("--where", action="append", default=[], metavar="CONDITION", help=text)
    text = "sort by column or key; -KEY: descending; repeat"
    parser.add_argument("--sort", action="append", default=[], metavar="KEY", help=text)


def joined(arguments: Sequence[str]) -> list[str]:
    """Joins `--sort` and its value: argparse parses the value of `--sort -val_auc` as an option."""
    result: list[str] = []
    for argument in arguments:
        if result and result[-1] == "--sort":
            result[-1] += f"={argument}"
        else:
            result.append(argument)
    return result


class _Report:
    """The runs in folders that meet all conditions, sorted.

    Attributes:
      rows: of the runs, in their order.
      axes: the keys in which the runs differ.
      metrics: the names of their metrics: the one that ranks them, then those of evaluations.
      predictions: of them, by virtual clusters among them.
    """

    def __init__(
        self, folders: Sequence[Path], where: Sequence[str], sort: Sequence[str], *, of_all_keys: bool
    ) -> None:
        everything = runs.find(folders)
        by_name = {run.name: run for run in everything}
        to_row = rows.row if of_all_keys or where or sort else rows.brief_row
        self.rows = rows.ordered(rows.matching([to_row(run) for run in everything], where), sort)
        self.runs = [by_name[row["run"]] for row in self.rows]
        self.axes = rows.axes(self.runs)
        self.ranking = ranking.of_runs(self.runs)
        self.metrics = self.ranking.first(rows.metric_names(self.runs))
        self.predictions = predicted.of_runs(self.runs)
        if self.predictions.pairs:
            for row in self.rows:
                row[predicted.COLUMN] = self.predictions.by_run.get(row["run"])
        self._sort = [rows.sort_key(key, self.rows) for key in sort]

    def named_columns(self, text: str) -> list[str]:
        """The columns in `text`, as of --columns."""
        return ["run", *(rows.full_key(key.strip(), self.rows) for key in text.split(",") if key.strip() != "run")]

    def for_programs(self, chosen: Sequence[str]) -> list[str]:
        """The columns of CSV and JSON: what tells the runs apart, then those that were chosen, else all."""
        columns = ["run", *self.axes]
        if rows.SEED not in columns:
            columns.insert(1, rows.SEED)
        if chosen:
            return list(dict.fromkeys([*columns, *chosen]))
        stale = dict[str, None]()
        for row in self.rows:
            for name in row:
                if name.startswith("staleness.") and not rows.is_of_worker(name):
                    stale[name] = None
        columns.insert(1, "folder")
        return [
            *columns, "status", *self.metrics, *rows.MEASURED, *self._virtual, *stale, *self._predicted, "error",
            *self._name,
        ]  # fmt: skip

    @property
    def _virtual(self) -> list[str]:
        """The columns in virtual time, if any run has them."""
        return [name for name in rows.VIRTUAL if self._has_values(name)]

    @property
    def _predicted(self) -> list[str]:
        """The column of predictions, if there are any."""
        return [predicted.COLUMN] if self.predictions.pairs else []

    @property
    def _name(self) -> list[str]:
        """The column of names, if any run has one."""
        return ["name"] if self._has_values("name") else []

    def folded(self, columns: list[str], fold: bool) -> tuple[list[rows.Row], list[str]]:
        """Rows and columns; with `fold`, runs that differ only in the seed are one row."""
        records = self.rows
        if fold:
            sorted_by = [key.removeprefix("-") for key in self._sort]
            needed = dict.fromkeys([*columns, *sorted_by, str(self.ranking.metric)])
            records = rows.folded(self.rows, rows.groups(self.runs), [*needed])
        if len(records) == len(self.rows):
            return self.rows, columns
        of_one_run = ("folder", predicted.COLUMN)
        columns = [rows.FOLDED if column == rows.SEED else column for column in columns if column not in of_one_run]
        return rows.ordered(records, self._sort), columns

    def compared(self, against: Sequence[Path], metrics: Sequence[str], *, pair: bool) -> comparison.Comparisons:
        """The runs compared with those in `against`, by the ranking metric if no other is named."""
        paths = {path for folder in against for path in below(existing(folder).resolve())}
        baseline = [run for run in self.runs if run.path in paths]
        others = [run for run in self.runs if run.path not in paths]
        ranked = [self.ranking.metric] if self.ranking.metric else []
        return comparison.compare(others, baseline, metrics or ranked, pair=pair)

    def as_table(self, console: Console, chosen: list[str], *, fold: bool) -> str:
        """The text for `console`: the table, and lines about it."""
        columns = chosen
        if not chosen:
            columns = self._default_columns()
        records, columns = self.folded(columns, fold)
        if not self._sort:
            records = self.ranking.ordered(records)
        visible = columns
        if console.is_terminal and not chosen:
            visible = table.fitting(records, columns, self._spare(columns), console.width)
        lines = [table.summary(self.runs, records)]
        if self.ranking.differs:
            lines.append(f"not ranked: the runs were evaluated on different rows ({self.ranking.differs})")
        lines += table.hidden(columns, visible, "choose columns with --columns; --csv writes all")
        text = output.on_paper(console, records, visible, [*lines, *table.errors(self.runs)])
        return text if chosen else f"{text}{_predictions(self.predictions, console)}"

    def _has_values(self, column: str) -> bool:
        """Whether a column says something: it has a value; there were recoveries; the runs differ in the examples."""
        if column == "examples":
            return rows.differs(row.get(column) for row in self.rows)
        return any(row.get(column) if column == "recoveries" else row.get(column) is not None for row in self.rows)

    def _default_columns(self) -> list[str]:
        """The columns of the table: the metric that ranks the runs, the keys that were set otherwise, then the rest."""
        metrics = [name for name in self.metrics if self._has_values(name)]
        measured = [name for name in rows.MEASURED if self._has_values(name)]
        explicit, implied = self._axes_by_origin()
        return [
            "run", "status", *metrics[:1], *explicit, *metrics[1:], *implied, *measured, *self._virtual, *self._name,
        ]  # fmt: skip

    def _axes_by_origin(self) -> tuple[list[str], list[str]]:
        """The axes that a command line set, and the others."""
        overridden = {key for run in self.runs for key in run.overrides}
        explicit = [key for key in self.axes if key in overridden]
        return explicit, [key for key in self.axes if key not in overridden]

    def _spare(self, columns: Sequence[str]) -> list[str]:
        """The columns that may be hidden, the least important first; run, status and one metric stay."""
        explicit, implied = self._axes_by_origin()
        further = [name for name in columns if name in self.metrics][1:]
        evaluated = [name for name in further if name.startswith(("val_", rows.BEST))]
        trained = [name for name in further if name not in evaluated]
        order = [
            *reversed(implied), "wall_s", "virtual.time_s", "steps", "examples", "steps_per_s", "virtual.steps_per_s",
            *reversed(trained), *reversed(evaluated), "recoveries", "virtual.examples_per_s", "examples_per_s",
            "notes", *reversed(explicit), rows.FOLDED,
        ]  # fmt: skip
        return [column for column in order if column in columns]
