"""`psrun data inspect|synthesize|vocabulary`: describe files, generate files, count values of categories."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from psrun import process
from psrun.config import schema
from psrun.data import storage
from psrun.errors import ConfigError, DataError, ExitCode
from psrun.files import on_disk, write_atomic
from psrun.results.console import feature_table, print_folded, warner, wide_unless_terminal
from psrun.tables import (
    decimal_marks,
    feature_spec,
    formats,
    header,
    label_guess,
    notations,
    profiles,
    proposals,
    synthesis,
    text,
)
from psrun.tables import histories as recipes
from psrun.tables.contents import FEW, spelling_warning
from psrun.tables.feature_spec import FeatureSpec
from psrun.tables.notations import Notation
from psrun.tables.profiles import Profile
from psrun.tables.proposals import Proposal
from psrun.tables.rows import TEXT, Layout, LayoutKeys

_NO_LABEL = "null"  # as data.label says it
_LINE = 120  # characters of the longest feature that is written on one line
_FORMATS = tuple(name for name, form in formats.FORMATS.items() if form.has_columns)


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun data ARGUMENTS`.

    Raises:
      ConfigError: an argument is out of range, the target exists, or the columns of the files do not fit.
      DataError: files do not exist or cannot be read, or the folder cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    parser = argparse.ArgumentParser(prog="psrun data", description=__doc__.partition(": ")[2])
    shown = argparse.ArgumentDefaultsHelpFormatter
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="inspect|synthesize|vocabulary")
    _add_inspect(subcommands)
    _add_synthesize(subcommands, shown)
    about = "write the values of each category in random order, for data.vocabulary=FOLDER"
    part = subcommands.add_parser("vocabulary", help=about, description=about, formatter_class=shown)
    part.set_defaults(function=_vocabulary)
    part.add_argument("path", help="files: one, a folder, or a pattern such as 'train-*.tsv'")
    part.add_argument("folder", type=on_disk, help="new folder of the vocabulary")
    part.add_argument("--min-count", type=int, metavar="N", default=1, help="omit less frequent values")
    part.add_argument(
        "--num-buckets", type=int, metavar="N", default=100_000, help="report hash collisions in N buckets"
    )
    part.add_argument("--seed", type=int, metavar="N", default=1, help="seed of the order")
    options = vars(parser.parse_args(arguments))
    del options["subcommand"]
    return options.pop("function")(wide_unless_terminal(Console(highlight=False, markup=False)), **options)


def _add_inspect(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "show the columns of files and propose features, for data=table"
    part = subcommands.add_parser("inspect", help=about, description=about)
    part.set_defaults(function=_inspect)
    part.add_argument("names", metavar="FILE", nargs="+", help="a file, a folder, or a pattern such as 'train-*.csv'")
    part.add_argument("--label", metavar="COLUMN", help="the column to predict; null: rows without a label")
    part.add_argument("--weight", metavar="COLUMN", help="the column with the weights of the examples")
    part.add_argument("--exclude", type=_names, metavar="A,B,...", help="columns that are no features")
    part.add_argument("--write", type=on_disk, metavar="FILE", help="write the proposal as YAML: conf/data/NAME.yaml")
    part.add_argument("--format", choices=_FORMATS, metavar="NAME", help=f"{', '.join(_FORMATS)}: if no name tells")
    about = "column names of text without a header"
    part.add_argument("--columns", type=_names, metavar="A,B,...", help=about)
    part.add_argument("--delimiter", metavar="C", help="field delimiter of text, such as ';'")
    part.add_argument("--decimal-mark", choices=(".", ","), metavar="C", help="of text: '.' or ',', as in 1.521,00 EUR")
    part.add_argument("--time-format", metavar="FORMAT", help="of times in text, such as %%d.%%m.%%Y")
    part.add_argument("--encoding", metavar="NAME", default="utf-8", help="encoding of text, such as latin-1")


def _add_synthesize(subcommands: argparse._SubParsersAction[argparse.ArgumentParser], shown: Any) -> None:
    about = "write synthetic rows in Criteo's layout, and the metrics of the true model"
    usage = "psrun data synthesize [OPTIONS] folder"
    part = subcommands.add_parser("synthesize", help=about, description=about, formatter_class=shown, usage=usage)
    part.set_defaults(function=_synthesize)
    part.add_argument("folder", type=on_disk, help="new folder of the files")
    part.add_argument("--num-examples", type=int, metavar="N", default=200_000, help="training rows")
    part.add_argument("--num-eval-examples", type=int, metavar="N", default=50_000, help="evaluation rows")
    part.add_argument("--num-values", type=int, metavar="N", default=1000, help="values of each category, or items")
    part.add_argument("--skew", type=float, metavar="X", default=1.1, help="exponent of Zipf's law; 0: uniform")
    part.add_argument("--empty", type=float, metavar="X", default=0.1, help="share of empty fields or histories")
    part.add_argument("--signal", type=float, metavar="X", default=1.5, help="standard deviation of the true logit")
    about = "an item and a list of items per row"
    part.add_argument("--histories", action="store_true", default=argparse.SUPPRESS, help=about)
    only: dict[str, Any] = {"type": int, "metavar": "N", "default": argparse.SUPPRESS}  # with --histories
    part.add_argument("--num-groups", **only, help="with --histories: groups of items (default: 20)")
    part.add_argument("--max-values", **only, help="with --histories: longest list (default: 50)")
    part.add_argument("--num-files", type=int, metavar="N", default=4, help="number of training files")
    part.add_argument("--gzip", action="store_true", help="compress the files")
    part.add_argument("--seed", type=int, metavar="N", default=1, help="seed of the random numbers")


def _names(text: str) -> list[str]:
    return text.split(",")


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
        criteo = importlib.import_module("psrun.recsys.data.criteo")  # only this command needs TensorFlow
        counts = criteo.write_vocabulary(path, folder, min_count=min_count, num_buckets=num_buckets, seed=seed)
    table = Table(box=None, pad_edge=False)
    for name in ("category", "values", "omitted", f"share a bucket of {num_buckets:,}"):
        table.add_column(name, justify="left" if name == "category" else "right")
    for name, row in counts.items():
        table.add_row(name, *(f"{row[key]:,}" for key in ("values", "left_out", "collisions")))
    console.print(table)
    console.print(f"written to {folder}: data.vocabulary={folder}")
    return ExitCode.DONE


def _inspect(
    console: Console,
    *,
    names: Sequence[str],
    label: str | None,
    weight: str | None,
    exclude: list[str] | None,
    write: Path | None,
    format: str | None,
    columns: list[str] | None,
    delimiter: str | None,
    encoding: str,
    decimal_mark: str | None,
    time_format: str | None,
) -> ExitCode:
    """Shows one row per feature, and optionally writes a choice of the group `data`."""
    given = label
    label = _label_column(given)
    if write is not None and write.exists():
        raise ConfigError(f"{write} exists; choose another name for --write")
    paths = [file for name in names for file in storage.find(name)]
    keys = LayoutKeys(format, delimiter, columns, encoding=encoding)
    wrong = [*text.problems(keys), *notations.problems(decimal_mark, time_format)]
    if wrong:
        raise ConfigError(wrong)
    notation = Notation(decimal_mark, time_format)
    layout = formats.layout(paths, keys)
    if layout.format == "tfrecord":
        raise ConfigError("TFRecord files have no schema, because records may differ; write data.features yourself")
    _check_label(paths[0], layout, label)
    labels = () if label is None else (label,)
    looked = profiles.profile_files(paths, layout, cache=storage.cache(), notation=notation, labels=labels)
    _check_excluded(exclude or (), labels, weight, looked, layout, paths[0])
    guessed = proposals.propose(looked.values(), (label, weight), formats.index_columns(paths, layout), exclude or ())
    _check_marks(looked, guessed, label, layout)
    first = next(iter(looked.values()))
    if not first.num_rows:
        raise DataError(f"{paths[0]} has no rows")
    if weight is not None:
        _check_weight(weight, label, paths[0], looked)
    task = None if label is None else label_guess.guess(looked[label])
    title = f"{first.num_rows:,} rows of {paths[0]}" + (f" and {len(paths) - 1} more files" if len(paths) > 1 else "")
    console.print(feature_table([each.row(name) for name, each in guessed.items()], title))
    warn = warner(console)
    header_hint = text.header_hint(tuple(looked), layout)
    for message in _warnings(guessed, first, None if label is None else looked[label], header_hint, notation):
        warn(message)
    if task is not None:
        print_folded(console, Text(f"label {label}: {task.note}"))
    if weight is not None:
        _show_weight(console, looked[weight])
    if write is not None:
        where = {"path": _pattern(names, paths), "label": _written_label(given)}
        where |= {} if weight is None else {"weight": weight}
        _write_choice(
            write, guessed, {**where, **_how(layout, format, notation), **(task.options if task is not None else {})}
        )
        console.print(_advice(write, given), soft_wrap=True)
    return ExitCode.DONE


def _check_excluded(
    exclude: Sequence[str],
    labels: Sequence[str],
    weight: str | None,
    looked: Mapping[str, Profile],
    layout: Layout,
    name: str,
) -> None:
    """Raises ConfigError if a column to exclude is not there, or is no feature anyway."""
    found = header.problems_of_excluded(exclude, labels, weight, [*looked], layout, name, has_features=False)
    wrong = [problem.message for problem in found]
    if wrong:
        raise ConfigError(f"--exclude: {'; '.join(wrong)}")


def _label_column(label: str | None) -> str | None:
    """The column of a label as it is on the command line; None if there is none."""
    return None if label == _NO_LABEL else label


def _written_label(label: str | None) -> str | None:
    """The value of `data.label`: null for rows without a label, and a required value where nothing was said."""
    return schema.MISSING if label is None else _label_column(label)


def _check_label(name: str, layout: Layout, label: str | None) -> None:
    """Raises ConfigError if a file has no such column, or only one, with a hint at the reason."""
    columns = formats.columns(name, layout) or ()
    if label in columns or (label is None and len(columns) > 1):
        return
    hint = text.delimiter_hint(name, layout, label, command=True)
    if label is None and not hint:
        return
    missing = f"{name} has no column {label!r}." if label else f"{name} has one column, {columns[0]!r}."
    hint = hint or _of_command(text.header_hint(columns, layout)) or schema.did_you_mean(str(label), columns)
    raise ConfigError(missing + hint)


def _check_marks(
    looked: Mapping[str, Profile], guessed: Mapping[str, Proposal], label: str | None, layout: Layout
) -> None:
    """Raises ConfigError if a feature or the label has two readings."""
    used = [each.profile.column for each in guessed.values() if each.feature is not None]
    if label is not None:
        used.append(label)
    decimal_marks.check(looked, used, layout)


def _of_command(hint: str) -> str:
    return hint.replace("data.columns=[...]", "--columns NAME,NAME,...")


def _warnings(
    guessed: Mapping[str, Proposal],
    first: Profile,
    label: Profile | None,
    header_hint: str,
    notation: Notation,
) -> Iterator[str]:
    if header_hint:
        yield _of_command(header_hint).strip()
    if label is not None and label.kind == "strings" and label.spellings:
        yield spelling_warning(f"label {label.column}", label.spellings)
    yield from proposals.warnings(guessed, notation)
    if note := proposals.index_note(guessed):
        yield note
    yield from proposals.leak_warnings(guessed)
    if first.num_bad:
        rows = "row is" if first.num_bad == 1 else "rows are"
        message = f"{first.num_bad:,} malformed {rows} not counted; the first is {first.first_bad}"
        yield f"{message}. A run fails there; set data.max_bad_rows={first.num_bad} to skip them"


def _check_weight(weight: str, label: str | None, name: str, columns: Mapping[str, Profile]) -> None:
    if weight not in columns:
        raise ConfigError(f"{name} has no column {weight!r}.{schema.did_you_mean(weight, columns)}")
    if weight == label:
        raise ConfigError(f"{weight!r} is the label; choose another column for --weight")
    if columns[weight].kind not in ("integers", "numbers") or columns[weight].unit:
        raise ConfigError(f"column {weight!r} of {name} does not hold numbers; choose another column for --weight")


def _show_weight(console: Console, weight: Profile) -> None:
    least, most = weight.limits
    print_folded(console, Text(f"weight {weight.column}: {proposals.shown(least)} to {proposals.shown(most)}"))
    what = [f"{weight.num_missing:,} missing weights"] * bool(weight.num_missing) + ["negative weights"] * (least < 0)
    if what:
        remedy = "a run fails at such rows, or skips up to data.max_bad_rows"
        warner(console)(f"column {weight.column} has {' and '.join(what)}; {remedy}")


def _how(layout: Layout, format: str | None, notation: Notation) -> dict[str, Any]:
    """The options of `data` that are needed to read the files."""
    options: dict[str, Any] = {"format": format} if format else {}
    options |= {key: value for key, value in dataclasses.asdict(notation).items() if value is not None}
    if layout.is_text and layout.delimiter != TEXT[layout.format]:
        options["delimiter"] = layout.delimiter
    if layout.columns is not None:
        options["columns"] = list(layout.columns)
    return options if layout.encoding == "utf-8" else {**options, "encoding": layout.encoding}


def _pattern(names: Sequence[str], paths: Sequence[str]) -> str:
    """A name or pattern for exactly these files; "???", a required value, if there is none."""
    if len(names) == 1:
        return names[0]
    folder, name = os.path.split(paths[0])
    pattern = os.path.join(folder, "*" + "".join(Path(name).suffixes))
    return pattern if storage.find(pattern) == sorted(paths) else schema.MISSING


def _write_choice(path: Path, guessed: Mapping[str, Proposal], keys: Mapping[str, Any]) -> None:
    lines = ["# Features proposed by psrun data inspect: edit them, and remove those that the model should not use."]
    lines += ["defaults:", "  - table", "  - _self_"]
    lines += [_item(key, value, "", "") for key, value in keys.items()]
    lines.append("features:")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, each in guessed.items():
            if each.feature is None:
                lines.append(f"  # {_flow(name)}: omitted: {_comment(each.note)}")
                continue
            options = feature_spec.options(_with_vocabulary_file(each.feature, name, path))
            if options.get("column") == name:
                del options["column"]
            missing = f"{each.missing} missing" * bool(each.missing)
            notes = (f"{each.num_values:,} values", each.ids, each.examples, missing, each.note)
            lines.append(_item(name, options, "  ", f"  # {_comment('; '.join(filter(None, notes)))}"))
        write_atomic(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error


def _with_vocabulary_file(feature: FeatureSpec, name: str, path: Path) -> FeatureSpec:
    """The feature, whose vocabulary is in a file if it is large and no value has a line feed."""
    texts = list(map(str, feature.vocabulary or ()))
    if len(texts) <= FEW or any(not text or "\n" in text or "\r" in text for text in texts):
        return feature
    file = path.parent / f"{path.stem}.vocabulary" / f"{name}.txt"
    file.parent.mkdir(exist_ok=True)
    write_atomic(file, "\n".join(texts) + "\n")
    return dataclasses.replace(feature, vocabulary=str(file))


def _comment(text: str) -> str:
    """On one line: a line feed would end the comment."""
    return " ".join(text.split())


def _item(key: str, value: Any, indent: str, comment: str) -> str:
    """A key and its value in YAML: on one line if that is short, else with each value of a list on a line."""
    line = f"{indent}{_flow(key)}: {_flow(value)}"
    if len(line) <= _LINE:
        return f"{line}{comment}"
    text = _escaped(yaml.safe_dump(value, width=2**20, allow_unicode=True, sort_keys=False))
    block = "".join(f"\n{indent}  {each}" for each in text.rstrip("\n").split("\n"))
    return f"{indent}{_flow(key)}:{comment}{block}"


def _flow(value: Any) -> str:
    dumped = yaml.safe_dump(value, default_flow_style=True, width=2**20, allow_unicode=True, sort_keys=False)
    return _escaped(dumped.removesuffix("\n").removesuffix("\n..."))


def _escaped(text: str) -> str:
    """Text that looks like a reference of OmegaConf is none."""
    return text.replace("${", r"\${")


def _advice(path: Path, label: str | None) -> str:
    """The command that uses the written file.

    Args:
      label: as on the command line.
    """
    more = "model=wide_deep"
    if label == _NO_LABEL:
        more = "model=matrix_factorization model.objective=softmax model.user=COLUMN model.item=COLUMN"
    elif label is None:
        more = "data.label=COLUMN model=wide_deep"
    if path.parent.name == "data" and path.suffix == ".yaml":
        return f"written to {path}: psrun --config-dir {path.parent.parent} data={path.stem} {more}"
    target = Path("FOLDER", "data", f"{path.stem}.yaml")
    return f"written to {path}; move it to {target} and run psrun --config-dir FOLDER data={path.stem} {more}"
