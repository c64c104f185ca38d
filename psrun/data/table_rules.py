"""What the keys of a table may be, and how they fit its columns: the problems that users are told of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from psrun.config.schema import did_you_mean
from psrun.data import formats, label_guess, labels, splits, text
from psrun.data.columns import ColumnSpec
from psrun.data.rows import Layout
from psrun.data.source import Task
from psrun.data.table_reader import WEIGHT
from psrun.errors import ConfigError, Problem


def require_none(*problems: Problem) -> None:
    """Raises ConfigError if there are problems."""
    if problems:
        raise ConfigError(problems)


def of_label(
    task: str | None, num_classes: int | None, label_vocabulary: labels.Vocabulary | None
) -> Iterator[Problem]:
    """Of the keys that describe one label."""
    if task is not None and task not in get_args(Task):
        yield Problem("data.task", f"is {task!r}, must be one of {', '.join(get_args(Task))}")
    if task == "multiclass" and label_vocabulary is None and (num_classes is None or num_classes < 2):
        yield Problem("data.num_classes", f"is {num_classes}, must be 2 or more with data.task=multiclass")
    if task != "multiclass" and num_classes is not None:
        yield Problem("data.num_classes", "requires data.task=multiclass; remove it")
    if label_vocabulary is not None and task is not None:
        yield from labels.fitting(task, num_classes, label_vocabulary)


def of_labels(
    names: Sequence[str], task: str | None, num_classes: int | None, vocabulary: labels.Vocabulary | None
) -> Iterator[Problem]:
    """Of the names of the labels, and of what only one label may have."""
    if not names or len({*names}) < len(names):
        yield Problem("data.label", f"is {list(names)}, must be a column, or several different ones")
    if len(names) > 1:
        for key, value in (("task", task), ("num_classes", num_classes), ("label_vocabulary", vocabulary)):
            if value is not None:
                message = "is inferred for each of several labels; set it to null"
                yield Problem(f"data.{key}", message)


def of_numbers(format: str | None, num_buckets: int | None, max_bad_rows: int) -> Iterator[Problem]:
    """Of the format and the numbers."""
    if format is not None and format not in formats.FORMATS:
        yield Problem("data.format", f"is {format!r}, must be one of {', '.join(formats.FORMATS)}, or null")
    if num_buckets is not None and num_buckets < 1:
        yield Problem("data.num_buckets", f"is {num_buckets}, must be 1 or more")
    if max_bad_rows < 0:
        yield Problem("data.max_bad_rows", f"is {max_bad_rows}, must be 0 or more")


def check_targets(targets: Mapping[str, label_guess.Label]) -> None:
    """Raises ConfigError if one of several labels has more than two classes."""
    for name, target in targets.items():
        if len(targets) > 1 and target.task == "multiclass":
            message = (
                f"names {name!r}, which has {target.num_classes} classes; several labels have two each, or are numbers"
            )
            raise ConfigError([Problem("data.label", message)])


def check_columns(
    specs: Mapping[str, ColumnSpec],
    labels: Sequence[str],
    weight: str | None,
    known: Sequence[str] | None,
    layout: Layout,
    name: str,
) -> None:
    """Raises ConfigError if columns are not there, or are used for two things."""
    keys = {
        feature: f"data.features.{spec.weights_of or feature}{'.weights' * bool(spec.weights_of)}"
        for feature, spec in specs.items()
    }
    of_labels = {"data.label" if len(labels) == 1 else f"data.label[{at}]": each for at, each in enumerate(labels)}
    columns = {**of_labels, **{keys[feature]: spec.column for feature, spec in specs.items()}}
    problems: list[Problem] = []
    if weight is not None:
        if weight in labels:
            problems.append(Problem(WEIGHT, f"{weight!r} is the label; choose another column"))
        for feature, spec in specs.items():
            if weight in (feature, spec.column):
                message = f"{weight!r} is also {keys[feature]}; choose another column, or remove the feature"
                problems.append(Problem(WEIGHT, message))
        columns[WEIGHT] = weight
    for key, column in columns.items():
        if known is not None and column not in known:
            hint = (
                text.delimiter_hint(name, layout, column)
                or text.header_hint(known, layout)
                or did_you_mean(column, known)
            )
            problems.append(Problem(key, f"{name} has no column {column!r}.{hint}"))
        elif key not in (*of_labels, WEIGHT):
            taken = [label for label in labels if label == column or key == keys.get(label)]
            problems += [Problem(key, f"{label!r} is the label; choose another column") for label in taken]
    if layout.is_text:
        problems += _in_text(specs, layout)
    require_none(*problems)


def check_split(spec: splits.SplitSpec, known: Sequence[str] | None, name: str) -> None:
    """Raises ConfigError if the file `name` does not have the columns of the split."""
    if known is None and spec.by in ("group", "time", "last"):
        message = f"is {spec.by}, which TFRecord files have no columns for; choose rows or none, or set data.eval_path"
        raise ConfigError([Problem(f"{splits.KEY}.by", message)])
    missing = [each for each in splits.columns_of(spec).items() if known is not None and each[1] not in known]
    require_none(
        *(Problem(key, f"{name} has no column {each!r}.{did_you_mean(each, known or ())}") for key, each in missing)
    )


def _in_text(specs: Mapping[str, ColumnSpec], layout: Layout) -> Iterator[Problem]:
    """Features that a field of text cannot hold."""
    for feature, spec in specs.items():
        key = f"data.features.{spec.weights_of or feature}"
        if spec.width != 1:
            message = f"is {spec.width}, must be 1: a text field holds one value; set max_values for a list"
            yield Problem(f"{key}.width", message)
        if spec.max_values is not None and spec.separator == layout.delimiter and not layout.quoted:
            message = f"is {spec.separator!r}, as is the delimiter of the fields; choose another one"
            yield Problem(f"{key}.separator", message)
