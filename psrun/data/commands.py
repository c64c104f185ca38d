"""`psrun data inspect|synthesize|vocabulary`: describe files, generate files, count values of categories."""

from __future__ import annotations

import argparse
import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from psrun import process
from psrun.data import histories as recipes
from psrun.data import inspection, synthesis
from psrun.errors import ConfigError, DataError, ExitCode

_FORMATS = ("csv", "tsv", "parquet", "arrow", "json", "npz")  # those with a schema


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun data ARGUMENTS`.

    Raises:
      ConfigError: an argument is out of range, or the target folder is not empty.
      DataError: files do not exist or cannot be read, or the folder cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    parser = argparse.ArgumentParser(prog="psrun data", description=__doc__.partition(": ")[2])
    shown = argparse.ArgumentDefaultsHelpFormatter
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="inspect|synthesize|vocabulary")
    _add_inspect(subcommands)
    _add_synthesize(subcommands, shown)
    text = "write the values of each category in random order, for data.vocabulary=FOLDER"
    part = subcommands.add_parser("vocabulary", help=text, description=text, formatter_class=shown)
    part.set_defaults(function=_vocabulary)
    part.add_argument("path", help="files: one, a folder, or a pattern such as 'train-*.tsv'")
    part.add_argument("folder", type=Path, help="new folder of the vocabulary")
    part.add_argument("--min-count", type=int, metavar="N", default=1, help="omit less frequent values")
    part.add_argument(
        "--num-buckets", type=int, metavar="N", default=100_000, help="report hash collisions in N buckets"
    )
    part.add_argument("--seed", type=int, metavar="N", default=1, help="seed of the order")
    options = vars(parser.parse_args(arguments))
    function, _ = options.pop("function"), options.pop("subcommand")
    return function(Console(highlight=False, markup=False), **options)


def _add_inspect(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "show the columns of files and propose features, for data=table"
    part = subcommands.add_parser("inspect", help=text, description=text)
    part.set_defaults(function=_inspect)
    part.add_argument("names", metavar="FILE", nargs="+", help="a file, a folder, or a pattern such as 'train-*.csv'")
    part.add_argument("--label", metavar="COLUMN", help="the column to predict")
    part.add_argument("--weight", metavar="COLUMN", help="the column with the weights of the examples")
    part.add_argument("--write", type=Path, metavar="FILE", help="write the proposal as YAML: conf/data/NAME.yaml")
    part.add_argument("--format", choices=_FORMATS, help="if the file names do not tell")
    part.add_argument("--columns", metavar="NAME,NAME,...", help="column names of text without a header")
    part.add_argument("--delimiter", metavar="C", help="field delimiter of text, such as ';'")
    part.add_argument("--encoding", metavar="NAME", default="utf-8", help="encoding of text, such as latin-1")


def _add_synthesize(subcommands: argparse._SubParsersAction[argparse.ArgumentParser], shown: Any) -> None:
    text = "write synthetic rows in Criteo's layout, and the metrics of the true model"
    usage = "psrun data synthesize [OPTIONS] folder"
    part = subcommands.add_parser("synthesize", help=text, description=text, formatter_class=shown, usage=usage)
    part.set_defaults(function=_synthesize)
    part.add_argument("folder", type=Path, help="new folder of the files")
    part.add_argument("--num-examples", type=int, metavar="N", default=200_000, help="training rows")
    part.add_argument("--num-eval-examples", type=int, metavar="N", default=50_000, help="evaluation rows")
    part.add_argument("--num-values", type=int, metavar="N", default=1000, help="values of each category, or items")
    part.add_argument("--skew", type=float, metavar="X", default=1.1, help="exponent of Zipf's law; 0: uniform")
    part.add_argument("--empty", type=float, metavar="X", default=0.1, help="share of empty fields or histories")
    part.add_argument("--signal", type=float, metavar="X", default=1.5, help="standard deviation of the true logit")
    text = "an item and a list of items per row"
    part.add_argument("--histories", action="store_true", default=argparse.SUPPRESS, help=text)
    part.add_argument(
        "--num-groups",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="with --histories: groups of items (default: 20)",
    )
    part.add_argument(
        "--max-values",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="with --histories: longest list (default: 50)",
    )
    part.add_argument("--num-files", type=int, metavar="N", default=4, help="number of training files")
    part.add_argument("--gzip", action="store_true", help="compress the files")
    part.add_argument("--seed", type=int, metavar="N", default=1, help="seed of the random numbers")


def _inspect(console: Console, **given: Any) -> ExitCode:
    inspection.run(console, **given)
    return ExitCode.DONE


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Creates an empty folder. Raises ConfigError if it is not empty, DataError as `main`."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; choose a new folder")
        yield
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error}") from error


def _synthesize(
    console: Console,
    folder: Path,
    num_files: int,
    gzip: bool,
    histories: bool = False,
    **options: Any,
) -> ExitCode:
    if not 1 <= num_files <= options["num_examples"]:
        raise ConfigError(f"num-files is {num_files}, must be from 1 to the number of examples")
    of_histories = [name for name in ("num_groups", "max_values") if name in options]
    if of_histories and not histories:
        raise ConfigError(f"--{of_histories[0].replace('_', '-')} needs --histories")
    recipe: Any = (recipes.Recipe if histories else synthesis.Recipe)(**options)
    with _new_folder(folder):
        bayes = synthesis.write(folder, recipe, num_files=num_files, zipped=gzip)
        if histories:
            recipes.write_config(folder, recipe, next(folder.glob("eval.*"), None))
    console.print(f"{folder}: {recipe.num_examples:,} rows to train on, {recipe.num_eval_examples:,} to evaluate on")
    if bayes:
        optimum = {name: "none" if value is None else f"{value:.4f}" for name, value in bayes.items()}
        console.print(f"metrics of the true model: AUC {optimum['auc']}, log loss {optimum['loss']}")
    if histories:
        console.print(f"features: psrun --config-dir {folder} data=histories model=...", soft_wrap=True)
    return ExitCode.DONE


def _vocabulary(console: Console, path: str, folder: Path, min_count: int, num_buckets: int, seed: int) -> ExitCode:
    with _new_folder(folder), process.silent_stderr():  # hides TensorFlow's messages about this machine
        criteo = importlib.import_module("psrun.data.criteo")  # only this command needs TensorFlow
        counts = criteo.write_vocabulary(path, folder, min_count=min_count, num_buckets=num_buckets, seed=seed)
    table = Table(box=None, pad_edge=False)
    for name in ("category", "values", "omitted", f"share a bucket of {num_buckets:,}"):
        table.add_column(name, justify="left" if name == "category" else "right")
    for name, row in counts.items():
        table.add_row(name, *(f"{row[key]:,}" for key in ("values", "left_out", "collisions")))
    console.print(table)
    console.print(f"written to {folder}: data.vocabulary={folder}")
    return ExitCode.DONE
