"""Features of a table, as the configuration describes them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun.config import schema
from psrun.data.lists import COMBINERS, ENDS, length_name, weights_name
from psrun.errors import ConfigError, DataError, Problem
from psrun.files import write_atomic
from psrun.results.run_folder import VOCABULARIES
from psrun.tables.columns import ColumnSpec, converted_value
from psrun.tables.notations import NO_NOTATION, Notation

LIST_ENDS = "list_ends"  # the fact in run.json: the end that each list keeps
LISTED = 256  # values of a vocabulary in run.json at most
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.-]*")  # valid names of layers in Keras and TensorFlow


@dataclass(frozen=True)
class FeatureSpec:
    """The options of `data.features.NAME`.

    Attributes:
      column: the column name in the files; None: the name of the feature.
      width: values per row.
      num_buckets: hash buckets of values without a vocabulary, and integers below it are their own ids; None for
        strings: data.num_buckets.
      vocabulary: a list of values, or a file with one value per line; None for none.
      logarithm: whether models use log(1 + x).
      default: replaces a missing value; None: such a row is malformed. An empty list is not a missing value.
      nullable: whether missing numbers become NaN, to which psrun's models give a separate weight.
      bins: number of intervals with about as many training rows each, by which models may encode a number; None: none.
      decimal_mark: of numbers as people write them ("$1,521.00", "1.521,00 EUR"); None: data.decimal_mark.
      unit: what each number has in front or behind, such as $ or %; empty for none; None: as in the training files.
      part: of a date or time, the number to take; None: the column has no dates.
      time_format: of dates as text, as strptime takes it, or iso; None: data.time_format.
      max_values: makes the feature a list; longer lists are truncated.
      keep: first or last: the values of longer lists that remain; None: the end that the model reads, else the first.
      separator: of the values of a list in a text; None: | in text files, and none in others.
      weights: the column with the weights of the values of a list; None for none.
      combiner: how models pool the rows of the values of a list; None: they keep the sequence.
      table: the name of the embedding table, which several features may share; None: a separate table.
    """

    dtype: str = schema.one_of("float32", "int64", "string", default="float32")
    column: str | None = None
    width: int = dataclasses.field(default=1, metadata={"at_least": 1, "or_else": None})
    num_buckets: int | None = dataclasses.field(default=None, metadata={"at_least": 1, "or_else": None})
    vocabulary: Any = None
    logarithm: bool = False
    default: Any = None
    nullable: bool = False
    bins: int | None = dataclasses.field(default=None, metadata={"at_least": 2, "or_else": None})
    decimal_mark: str | None = schema.one_of(".", ",", None, default=None)
    unit: str | None = None
    part: str | None = schema.one_of("days", "month", "weekday", "hour", None, default=None)
    time_format: str | None = None
    max_values: int | None = dataclasses.field(default=None, metadata={"at_least": 1, "or_else": None})
    keep: str | None = schema.one_of(*ENDS, None, default=None)
    separator: str | None = None
    weights: str | None = None
    combiner: str | None = schema.one_of(*COMBINERS, None, default="mean")
    table: str | None = None

    def columns(
        self, name: str, separator: str | None = None, decimal_mark: str | None = None
    ) -> dict[str, ColumnSpec]:
        """The columns that the feature is read from: its own and, by another name, that of the weights.

        Args:
          separator: the default of the format.
          decimal_mark: of the weights.
        """
        column = ColumnSpec(
            self.column or name,
            self.dtype,
            self.width,
            self.default,
            nullable=self.nullable,
            decimal_mark=self.decimal_mark,
            unit=self.unit or "",
            part=self.part,
            time_format=self.time_format,
        )
        if self.max_values is None:
            return {name: column}
        column = dataclasses.replace(
            column, max_values=self.max_values, keep=self.keep or ENDS[0], separator=self.separator or separator
        )
        if self.weights is None:
            return {name: column}
        weights = dataclasses.replace(
            column,
            column=self.weights,
            dtype="float32",
            default=None,
            decimal_mark=self.decimal_mark or decimal_mark,
            unit="",
            weight=True,
            weights_of=name,
        )
        return {name: column, weights_name(name): weights}


def read(node: Mapping[str, Any], notation: Notation = NO_NOTATION) -> dict[str, FeatureSpec]:
    """Parses `data.features`.

    Args:
      notation: of the data set, for features without their own.

    Raises:
      ConfigError: lists all problems.
    """
    problems: list[Problem] = []
    features = {}
    if not isinstance(node, Mapping) or not node:
        raise ConfigError([Problem("data.features", f"is {node!r}, must be a mapping of features by name, or null")])
    for name, options in node.items():
        key = f"data.features.{name}"
        if options is not None and not isinstance(options, Mapping):
            problems.append(Problem(key, f"is {options!r}, must be a mapping of options, such as {{dtype: int64}}"))
            continue
        described = schema.read(FeatureSpec, options or {}, key=key, problems=problems)
        if not _NAME.fullmatch(str(name)):
            message = "is not a valid layer name; use letters, digits and _ . - and set column: to the column name"
            problems.append(Problem(key, message))
        if described is not None:
            described = _with_notation(described, notation)
            features[str(name)] = described
            problems += [Problem(f"{key}.{option}", message) for option, message in _wrong(described)]
    for name, described in features.items():
        reserved = {weights_name(name): "weights"} if described.weights is not None else {}
        reserved |= {length_name(name): "lengths, in exports,"} if described.max_values is not None else {}
        problems += [
            Problem(f"data.features.{other}", f"is the name of the {what} of {name}; rename it")
            for other, what in reserved.items()
            if other in features
        ]
    if problems:
        raise ConfigError(problems)
    return features


def _with_notation(feature: FeatureSpec, notation: Notation) -> FeatureSpec:
    """The feature with the notation of the data set, unless it has its own."""
    if feature.part is not None:
        return dataclasses.replace(feature, time_format=feature.time_format or notation.time_format)
    if feature.dtype == "float32":
        return dataclasses.replace(feature, decimal_mark=feature.decimal_mark or notation.decimal_mark)
    return feature


def with_units(
    features: Mapping[str, FeatureSpec], recorded: Mapping[str, str], unit_of: Callable[[str, str, str], str]
) -> dict[str, FeatureSpec]:
    """The features, each with the unit of its numbers.

    Args:
      recorded: the units that the run began with, by feature.
      unit_of: the unit of a column in the training files, by key, column and decimal mark.
    """
    known = {}
    for name, feature in features.items():
        if feature.decimal_mark is not None and feature.unit is None:
            unit = recorded.get(name)
            if unit is None:
                unit = unit_of(f"data.features.{name}.unit", feature.column or name, feature.decimal_mark)
            feature = dataclasses.replace(feature, unit=unit)
        known[name] = feature
    return known


def _wrong(feature: FeatureSpec) -> Iterable[tuple[str, str]]:
    """Invalid combinations of options: the option and the problem of each."""
    is_float = feature.dtype == "float32"
    if is_float and feature.num_buckets is not None:
        yield "num_buckets", "requires dtype: string or int64; remove it, or set dtype"
    if feature.vocabulary is not None and feature.num_buckets is not None:
        yield "num_buckets", "contradicts vocabulary; remove one of them"
    yield from _wrong_number(feature)
    yield from _wrong_list(feature)
    if feature.table is not None and is_float:
        yield "table", "requires dtype: string or int64; remove it, or set dtype"
    elif feature.table is not None and not _NAME.fullmatch(feature.table):
        yield "table", "is not a valid variable name; use letters, digits and _ . -"
    if feature.default is not None:
        try:
            converted_value(feature.default, feature.dtype)
        except ValueError as error:
            yield "default", str(error)
    if feature.vocabulary is not None and (problem := _wrong_vocabulary(feature.dtype, feature.vocabulary)):
        yield "vocabulary", problem


def _wrong_number(feature: FeatureSpec) -> Iterable[tuple[str, str]]:
    for option in ("logarithm", "bins", "nullable", "decimal_mark"):
        if feature.dtype != "float32" and getattr(feature, option):
            yield option, "requires dtype: float32"
    if feature.unit and feature.decimal_mark is None:
        yield "unit", "requires decimal_mark, here or in data.decimal_mark"
    if feature.part is not None and (feature.dtype == "string" or feature.decimal_mark is not None):
        yield "part", "is a number of a date: requires dtype: float32 or int64, and no decimal_mark"
    if feature.time_format is not None and feature.part is None:
        yield "time_format", "requires part, the number to take of a date"
    if feature.nullable and feature.default is not None:
        yield "nullable", "contradicts default, which replaces missing values; remove one of them"


def _wrong_list(feature: FeatureSpec) -> Iterable[tuple[str, str]]:
    if feature.max_values is None:
        for option in ("keep", "separator", "weights", "combiner"):
            if getattr(feature, option) != FeatureSpec.__dataclass_fields__[option].default:
                yield option, "requires max_values, which makes the feature a list; add it, or remove this option"
        return
    if feature.width != 1:
        yield "width", "contradicts max_values; remove one of them"
    if feature.weights is not None and feature.combiner == "max":
        yield "weights", "contradicts combiner: max, which has no weights; remove one of them"
    if feature.separator == "":
        yield "separator", "is empty; set it to the text between two values, such as '|'"
    if feature.logarithm:
        yield "logarithm", "is not supported for lists; remove it"


def _wrong_vocabulary(dtype: str, vocabulary: Any) -> str | None:
    kind = {"string": str, "int64": int}.get(dtype)
    if kind is None:
        return "requires dtype: string or int64; remove it, or set dtype"
    if isinstance(vocabulary, str):
        return None if Path(vocabulary).expanduser().is_file() else f"there is no file {vocabulary}"
    if isinstance(vocabulary, list) and vocabulary and all(type(value) is kind for value in vocabulary):
        return None
    return f"must be a list of values of type {dtype}, or a file with one value per line"


def name_of(column: str) -> str:
    """The feature name for a column; empty if there is no valid name."""
    return re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_.-]", "_", column)).lstrip("_-").rstrip("_")


def options(feature: FeatureSpec) -> dict[str, Any]:
    """The value of `data.features.NAME` for a feature: the options that differ from their defaults."""
    values = {field.name: (getattr(feature, field.name), field.default) for field in dataclasses.fields(feature)}
    return {name: value for name, (value, default) in values.items() if value != default}


def record(features: Mapping[str, FeatureSpec], folder: Path | None) -> dict[str, Any]:
    """The inferred features for run.json.

    Args:
      folder: of the run, which gets a file for each vocabulary that is longer than 256 values; None: these are listed.
    """
    described = {}
    for name, feature in features.items():
        described[name] = options(feature)
        vocabulary = feature.vocabulary
        if folder is not None and isinstance(vocabulary, list) and len(vocabulary) > LISTED:
            path = vocabulary_file(name, folder)
            described[name]["vocabulary"] = str(path.relative_to(folder))
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, "".join(f"{value}\n" for value in vocabulary))
    return described


def vocabulary_file(name: str, folder: Path) -> Path:
    """The file in the folder of a run that has the long vocabulary of an inferred feature."""
    return folder / VOCABULARIES / f"{name}.txt"


def recorded(facts: Mapping[str, Any], folder: Path | None) -> dict[str, FeatureSpec]:
    """The inferred features that a run recorded; empty if the configuration had them.

    Args:
      folder: of the run.

    Raises:
      DataError: a vocabulary is not in the folder any more.
    """
    features = {name: FeatureSpec(**values) for name, values in facts.get("features", {}).items()}
    return {name: _with_vocabulary(feature, folder) for name, feature in features.items()}


def with_ends(
    features: Mapping[str, FeatureSpec], read: Mapping[str, str], facts: Mapping[str, Any]
) -> dict[str, FeatureSpec]:
    """The features, in which each list says the end that it keeps.

    A list that says none has the end that the run recorded; in a new run the end that the model reads, or the first.

    Args:
      read: the ends that the model reads, by feature.
      facts: that the run recorded; empty for a new run.
    """
    known = facts.get(LIST_ENDS, read)
    ended = {}
    for name, feature in features.items():
        ended[name] = feature
        if feature.max_values is not None and feature.keep is None:
            ended[name] = dataclasses.replace(feature, keep=known.get(name, ENDS[0]))
    return ended


def ends_of(features: Mapping[str, FeatureSpec]) -> dict[str, str]:
    """The end that each list keeps, for run.json."""
    return {name: feature.keep for name, feature in features.items() if feature.keep is not None}


def _with_vocabulary(feature: FeatureSpec, folder: Path | None) -> FeatureSpec:
    if folder is None or not isinstance(feature.vocabulary, str):
        return feature
    return dataclasses.replace(feature, vocabulary=listed(folder / feature.vocabulary, feature.dtype))


def listed(path: Path, dtype: str) -> list[Any]:
    """The values of a vocabulary in a file, one a line.

    Raises:
      DataError: the file cannot be read, or has a line that is no integer, for int64.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return [int(line) for line in lines] if dtype == "int64" else lines
    except (OSError, ValueError) as error:
        raise DataError(f"the vocabulary {path} cannot be read: {error}") from error
