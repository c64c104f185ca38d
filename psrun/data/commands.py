"""`psrun data inspect|synthesize|vocabulary`: what files hold, made-up files, and the values of their categories."""

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
from psrun.data import inspection, synthesis
from psrun.errors import ConfigError, DataError, ExitCode


def main(arguments: list[str]) -> ExitCode:
    """Does what `psrun data ARGUMENTS` asks for.

    Raises:
      ConfigError: an argument is out of its range, or there is something in the folder to write to.
      DataError: files are not there or cannot be read, or the folder cannot be written.
      SystemExit: as argparse ends: help, or arguments that it does not know.
    """
    parser = argparse.ArgumentParser(prog="psrun data", description=__doc__.partition(": ")[2])
    shown = argparse.ArgumentDefaultsHelpFormatter
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="inspect|synthesize|vocabulary")
    _add_inspect(verbs)
    text = "writes rows in Criteo's layout of which the truth is known, and what no model can beat (truth.json)"
    verb = verbs.add_parser("synthesize", help=text, description=text, formatter_class=shown)
    verb.set_defaults(function=_synthesize)
    verb.add_argument("folder", type=Path, help="a new one")
    verb.add_argument("--num-examples", type=int, metavar="N", default=200_000, help="rows to train on")
    verb.add_argument("--num-eval-examples", type=int, metavar="N", default=50_000, help="rows to evaluate on")
    verb.add_argument("--num-values", type=int, metavar="N", default=1000, help="of each of the 26 categories")
    verb.add_argument("--skew", type=float, metavar="X", default=1.1, help="exponent of Zipf's law; 0: all as frequent")
    verb.add_argument("--empty", type=float, metavar="X", default=0.1, help="share of the fields that are empty")
    verb.add_argument("--signal", type=float, metavar="X", default=1.5, help="standard deviation of the true logit")
    verb.add_argument("--num-files", type=int, metavar="N", default=4, help="of the rows to train on")
    verb.add_argument("--gzip", action="store_true", help="whether they are compressed")
    verb.add_argument("--seed", type=int, metavar="N", default=1, help="of the random numbers")
    text = "writes the values of each category, in a random order, for data.vocabulary=FOLDER"
    verb = verbs.add_parser("vocabulary", help=text, description=text, formatter_class=shown)
    verb.set_defaults(function=_vocabulary)
    verb.add_argument("path", help="files: one, a folder, or a pattern such as 'train-*.tsv'")
    verb.add_argument("folder", type=Path, help="a new one")
    verb.add_argument("--min-count", type=int, metavar="N", default=1, help="leaves out less frequent values")
    verb.add_argument("--num-buckets", type=int, metavar="N", default=100_000, help="tells how many meet in so many")
    verb.add_argument("--seed", type=int, metavar="N", default=1, help="of the order")
    given = vars(parser.parse_args(arguments))
    function, _ = given.pop("function"), given.pop("verb")
    return function(Console(highlight=False, markup=False), **given)


def _add_inspect(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "shows the columns of files and the features that they may be, for data=table"
    verb = verbs.add_parser("inspect", help=text, description=text)
    verb.set_defaults(function=_inspect)
    verb.add_argument("names", metavar="FILE", nargs="+", help="a file, a folder, or a pattern such as 'train-*.csv'")
    verb.add_argument("--label", metavar="COLUMN", help="the column that is to be predicted")
    verb.add_argument("--write", type=Path, metavar="FILE", help="writes them as YAML, to edit: conf/data/NAME.yaml")
    verb.add_argument("--format", choices=("csv", "tsv", "parquet", "npz"), help="where names do not end in it")
    verb.add_argument("--delimiter", metavar="C", help="between the fields of text, such as ';'")
    verb.add_argument("--encoding", metavar="NAME", default="utf-8", help="of text, such as latin-1")


def _inspect(console: Console, **given: Any) -> ExitCode:
    inspection.run(console, **given)
    return ExitCode.DONE


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """A folder with nothing in it, to write to. Raises ConfigError where there is something, DataError as `main`."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: what is written goes into a new folder")
        yield
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error}") from error


def _synthesize(console: Console, folder: Path, num_files: int, gzip: bool, **recipe: float) -> ExitCode:
    if not 1 <= num_files <= recipe["num_examples"]:
        raise ConfigError(f"num-files is {num_files}, must be from 1 to the number of examples")
    made = synthesis.Recipe(**recipe)  # type: ignore[arg-type]
    with _new_folder(folder):
        bayes = synthesis.write(folder, made, num_files=num_files, zipped=gzip)
    console.print(f"{folder}: {made.num_examples:,} rows to train on, {made.num_eval_examples:,} to evaluate on")
    if bayes:
        told = {name: "none" if value is None else f"{value:.4f}" for name, value in bayes.items()}
        console.print(f"the truth has an AUC of {told['auc']} and a log loss of {told['loss']} on these")
    return ExitCode.DONE


def _vocabulary(console: Console, path: str, folder: Path, min_count: int, num_buckets: int, seed: int) -> ExitCode:
    with _new_folder(folder):
        with process.silent_stderr():  # what TensorFlow finds out about this machine is of no interest here
            vocabulary = importlib.import_module("psrun.data.vocabulary")  # the one verb that needs it
        found = vocabulary.write(path, folder, min_count=min_count, num_buckets=num_buckets, seed=seed)
    table = Table(box=None, pad_edge=False)
    for name in ("category", "values", "left out", f"share a bucket of {num_buckets:,}"):
        table.add_column(name, justify="left" if name == "category" else "right")
    for name, told in found.items():
        table.add_row(name, *(f"{told[key]:,}" for key in ("values", "left_out", "collisions")))
    console.print(table)
    console.print(f"written to {folder}: data.vocabulary={folder}")
    return ExitCode.DONE
