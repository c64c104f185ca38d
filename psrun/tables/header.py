"""The columns that a table needs, checked against the header of its files. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from psrun.config import advice
from psrun.config.schema import did_you_mean
from psrun.data import storage
from psrun.errors import ConfigError, DataError, Problem
from psrun.tables import feature_spec, formats, notations, splits, text
from psrun.tables.columns import ColumnSpec
from psrun.tables.feature_spec import FeatureSpec
from psrun.tables.notations import Notation
from psrun.tables.rows import Layout, LayoutKeys

LIST_SEPARATOR = "|"  # of the values of a list in a field of text
_WEIGHT = "data.weight"
_EXCLUDE = "data.exclude"
_TEXTS = ("path", "eval_path", "weight", "delimiter", "encoding", "format", "decimal_mark", "time_format")


def problems(options: Mapping[str, Any], features: Mapping[str, str]) -> list[Problem]:
    """What is wrong with the options of a `table.Table`, as far as the header of its first file tells.

    Files that cannot be read, and files of an object store, are left to the table itself.

    Args:
      options: of the table.
      features: the names of features that other keys of the run need, by key.
    """
    if options.get("path") is None or "label" not in options:
        return []
    if wrong := list(_no_texts(options)):
        return wrong
    path = options["path"]
    if "://" in path:
        return []
    if options.get("format") not in (None, *formats.FORMATS):
        return []
    keys = LayoutKeys(
        format=options.get("format"),
        delimiter=options.get("delimiter"),
        columns=options.get("columns"),
        quoted=options.get("quoted", True),
        encoding=str(options.get("encoding", "utf-8")),
    )
    wrong = list(text.problems(keys))
    wrong += notations.problems(options.get("decimal_mark"), options.get("time_format"))
    if wrong:
        return wrong
    try:
        names = storage.find(path)
        layout = formats.layout(names, keys, folders=(path, options.get("eval_path")))
        known = formats.columns(names[0], layout)
    except ConfigError as error:
        return error.problems
    except DataError:
        return []
    return _of_options(options, features, known, layout, names[0])


def _no_texts(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Options that are no text where a text is needed, such as the name of a column that YAML reads as a number."""
    advice = "quote a number or a word such as true twice, for the shell and for psrun"
    for name in _TEXTS:
        value = options.get(name)
        if value is not None and not isinstance(value, str):
            yield Problem(f"data.{name}", f"is {value!r}, must be text; {advice}")
    label = options["label"]
    if label is not None and not isinstance(label, str) and (not label or not _are_texts(label)):
        message = f"is {label!r}, must be the name of a column, or a list of names; {advice}"
        yield Problem("data.label", f"{message}: 'data.label=\"2024\"'")
    for name in ("columns", "exclude"):
        columns = options.get(name)
        if columns is not None and not _are_texts(columns):
            yield Problem(f"data.{name}", f"is {columns!r}, must be a list of names, such as [a,b]; {advice}")


def label_names(label: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns that `data.label` names; none for null."""
    if label is None:
        return ()
    if isinstance(label, str):
        return (label,)
    return tuple(label)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(each, str) for each in values)


def _of_options(
    options: Mapping[str, Any],
    features: Mapping[str, str],
    known: Sequence[str] | None,
    layout: Layout,
    name: str,
) -> list[Problem]:
    """The problems of options that name columns of the file `name`, which has the columns `known`."""
    labels = label_names(options["label"])
    weight = options.get("weight")
    specs: dict[str, FeatureSpec] = {}
    found: list[Problem] = []
    try:
        if options.get("features") is not None:
            notation = Notation(options.get("decimal_mark"), options.get("time_format"))
            specs = feature_spec.read(options["features"], notation)
    except ConfigError as error:
        found += error.problems
    found += column_problems(columns_of(specs, layout), labels, weight, known, layout, name)
    exclude = options.get("exclude") or ()
    described = options.get("features") is not None
    found += problems_of_excluded(exclude, labels, weight, known, layout, name, has_features=described)
    try:
        split = splits.read(options.get("split"))
        if options.get("eval_path") is None:
            splits.check_columns(split, known, name)
    except ConfigError as error:
        found += error.problems
    if not found:
        no_features = (*labels, weight, *exclude)
        inferred = [feature_spec.name_of(column) for column in known or () if column not in no_features]
        found += _unknown_features(features, specs, inferred)
    return found


def _unknown_features(
    needed: Mapping[str, str], specs: Mapping[str, FeatureSpec], inferred: Sequence[str]
) -> Iterator[Problem]:
    """Names of features that there cannot be.

    Args:
      inferred: the features of whole columns, without `specs`; a part of a date has the column's name and a suffix.
    """
    for key, name in needed.items():
        if specs:
            may_be = name in specs
        else:
            may_be = name in inferred or any(name.startswith(f"{column}_") for column in inferred)
        if not may_be:
            yield Problem(key, advice.no_such_feature(name, specs or inferred))


def columns_of(
    specs: Mapping[str, FeatureSpec], layout: Layout, decimal_mark: str | None = None
) -> dict[str, ColumnSpec]:
    """The columns of the features, by the names that these have in batches.

    Args:
      decimal_mark: of the weights of lists.
    """
    separator = LIST_SEPARATOR if layout.is_text else None
    columns: dict[str, ColumnSpec] = {}
    for name, feature in specs.items():
        columns |= feature.columns(name, separator, decimal_mark)
    return columns


def column_problems(
    specs: Mapping[str, ColumnSpec],
    labels: Sequence[str],
    weight: str | None,
    known: Sequence[str] | None,
    layout: Layout,
    name: str,
) -> list[Problem]:
    """The problems of columns that are not there, or are used for two things.

    Args:
      specs: the columns of the features.
      known: the columns of the file `name`; None if each record has its own.
    """
    keys: dict[str, str] = {}
    for feature, spec in specs.items():
        key = f"data.features.{spec.weights_of or feature}"
        keys[feature] = key if spec.weights_of is None else f"{key}.weights"
    of_labels = {"data.label" if len(labels) == 1 else f"data.label[{at}]": each for at, each in enumerate(labels)}
    columns = dict(of_labels)
    for feature, spec in specs.items():
        columns[keys[feature]] = spec.column
    problems: list[Problem] = []
    if weight is not None:
        problems += _of_the_weight(weight, specs, labels, keys)
        columns[_WEIGHT] = weight
    for key, column in columns.items():
        if known is not None and column not in known:
            problems.append(_no_such_column(key, column, known, layout, name))
        elif key not in (*of_labels, _WEIGHT):
            taken = [label for label in labels if label == column or key == keys.get(label)]
            problems += [Problem(key, f"{label!r} is the label; choose another column") for label in taken]
    if layout.is_text:
        problems += _problems_in_text(specs, layout)
    return problems


def problems_of_excluded(
    exclude: Sequence[str],
    labels: Sequence[str],
    weight: str | None,
    known: Sequence[str] | None,
    layout: Layout,
    name: str,
    *,
    has_features: bool,
) -> Iterator[Problem]:
    """The problems of `data.exclude`: of columns that are not there, or that are no features anyway.

    Args:
      labels, weight, known, name: as in `column_problems`.
      has_features: whether `data.features` describes the features.
    """
    if exclude and has_features:
        yield Problem(_EXCLUDE, "has no effect beside data.features; leave the columns out there, and remove it")
        return
    for column in exclude:
        if known is not None and column not in known:
            yield _no_such_column(_EXCLUDE, column, known, layout, name)
        elif column in labels or column == weight:
            role = "label" if column in labels else "weight"
            yield Problem(_EXCLUDE, f"{column!r} is the {role}, which is no feature; remove it here")


def _of_the_weight(
    weight: str, specs: Mapping[str, ColumnSpec], labels: Sequence[str], keys: Mapping[str, str]
) -> Iterator[Problem]:
    if weight in labels:
        yield Problem(_WEIGHT, f"{weight!r} is the label; choose another column")
    for feature, spec in specs.items():
        if weight in (feature, spec.column):
            message = f"{weight!r} is also {keys[feature]}; choose another column, or remove the feature"
            yield Problem(_WEIGHT, message)


def _no_such_column(key: str, column: str, known: Sequence[str], layout: Layout, name: str) -> Problem:
    hint = ""
    if column.strip() not in [each.strip() for each in known]:  # else blanks, and no delimiter, are between names
        hint = text.delimiter_hint(name, layout, column)
    hint = hint or text.header_hint(known, layout) or did_you_mean(column, known)
    return Problem(key, f"{name} has no column {column!r}.{hint}")


def _problems_in_text(specs: Mapping[str, ColumnSpec], layout: Layout) -> Iterator[Problem]:
    """Features that a field of text cannot hold."""
    for feature, spec in specs.items():
        key = f"data.features.{spec.weights_of or feature}"
        if spec.width != 1:
            message = f"is {spec.width}, must be 1: a text field holds one value; set max_values for a list"
            yield Problem(f"{key}.width", message)
        if spec.max_values is not None and spec.separator == layout.delimiter and not layout.quoted:
            message = f"is {spec.separator!r}, as is the delimiter of the fields; choose another one"
            yield Problem(f"{key}.separator", message)
