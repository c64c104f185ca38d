"""Features of a table, as the configuration describes them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun.config import schema
from psrun.data.columns import CONVERSIONS, Wanted
from psrun.data.lists import COMBINERS, length_name, weights_name
from psrun.errors import ConfigError, Problem

_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.-]*")  # valid names of layers in Keras and TensorFlow


@dataclass(frozen=True)
class FeatureSpec:
    """The options of `data.features.NAME`.

    Attributes:
      column: the column name in the files; None: the name of the feature.
      width: values per row.
      num_buckets: hash buckets of values without a vocabulary; None for strings: data.num_buckets.
      vocabulary: a list of values, or a file with one value per line; None for none.
      logarithm: whether models use log(1 + x).
      default: replaces a missing value; None: such a row is malformed. An empty list is not a missing value.
      max_values: makes the feature a list; longer lists are truncated to their first values.
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
    max_values: int | None = dataclasses.field(default=None, metadata={"at_least": 1, "or_else": None})
    separator: str | None = None
    weights: str | None = None
    combiner: str | None = schema.one_of(*COMBINERS, None, default="mean")
    table: str | None = None

    def wanted(self, name: str, separator: str | None = None) -> dict[str, Wanted]:
        """The columns that the feature is read from: its own and, by another name, that of the weights.

        Args:
          separator: the default of the format.
        """
        column = Wanted(self.column or name, self.dtype, self.width, self.default)
        if self.max_values is None:
            return {name: column}
        column = dataclasses.replace(column, max_values=self.max_values, separator=self.separator or separator)
        if self.weights is None:
            return {name: column}
        weights = dataclasses.replace(
            column, column=self.weights, dtype="float32", default=None, weight=True, weights_of=name
        )
        return {name: column, weights_name(name): weights}


def read(node: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    """Parses `data.features`.

    Raises:
      ConfigError: lists all problems.
    """
    problems: list[Problem] = []
    features = {}
    if not isinstance(node, Mapping) or not node:
        raise ConfigError([Problem("data.features", f"is {node!r}, must be a mapping of features by name, or null")])
    for name, options in node.items():
        key = f"data.features.{name}"
        described = schema.read(FeatureSpec, options or {}, key=key, problems=problems)
        if not _NAME.fullmatch(str(name)):
            message = "is not a valid layer name; use letters, digits and _ . - and set column: to the column name"
            problems.append(Problem(key, message))
        if described is not None:
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


def _wrong(feature: FeatureSpec) -> Iterable[tuple[str, str]]:
    """Invalid combinations of options."""
    if feature.dtype == "float32" and feature.num_buckets is not None:
        yield "num_buckets", "requires dtype: string or int64; remove it, or set dtype"
    if feature.vocabulary is not None and feature.num_buckets is not None:
        yield "num_buckets", "contradicts vocabulary; remove one of them"
    if feature.logarithm and feature.dtype != "float32":
        yield "logarithm", "requires dtype: float32"
    yield from _wrong_list(feature)
    if feature.default is not None:
        try:
            CONVERSIONS[feature.dtype](feature.default)
        except ValueError as error:
            yield "default", str(error)
    if feature.vocabulary is not None:
        yield from (("vocabulary", message) for message in _vocabulary(feature.dtype, feature.vocabulary))


def _wrong_list(feature: FeatureSpec) -> Iterable[tuple[str, str]]:
    """Invalid combinations of options of lists."""
    if feature.max_values is None:
        for option in ("separator", "weights", "combiner"):
            if getattr(feature, option) != FeatureSpec.__dataclass_fields__[option].default:
                yield option, "requires max_values, which makes the feature a list; add it, or remove this option"
    elif feature.width != 1:
        yield "width", "contradicts max_values; remove one of them"
    if feature.weights is not None and feature.combiner == "max":
        yield "weights", "contradicts combiner: max, which has no weights; remove one of them"
    if feature.separator == "":
        yield "separator", "is empty; set it to the text between two values, such as '|'"
    if feature.max_values is not None and feature.logarithm:
        yield "logarithm", "is not supported for lists; remove it"
    if feature.table is not None and feature.dtype == "float32":
        yield "table", "requires dtype: string or int64; remove it, or set dtype"
    elif feature.table is not None and not _NAME.fullmatch(feature.table):
        yield "table", "is not a valid variable name; use letters, digits and _ . -"


def _vocabulary(dtype: str, vocabulary: Any) -> Iterable[str]:
    kind = {"string": str, "int64": int}.get(dtype)
    if kind is None:
        yield "requires dtype: string or int64; remove it, or set dtype"
    elif isinstance(vocabulary, str):
        if dtype != "string":
            yield "must be a list; vocabulary files require dtype: string"
        elif not Path(vocabulary).expanduser().is_file():
            yield f"there is no file {vocabulary}"
    elif not isinstance(vocabulary, list) or not vocabulary or any(type(value) is not kind for value in vocabulary):
        yield f"must be a list of values of type {dtype}" + (
            ", or a file with one value per line" if kind is str else ""
        )


def name_of(column: str) -> str:
    """The feature name for a column; empty if there is no valid name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", column).lstrip("_-")


def options(feature: FeatureSpec) -> dict[str, Any]:
    """The value of `data.features.NAME` for a feature: the options that differ from their defaults."""
    values = dataclasses.asdict(feature)
    return {
        field.name: values[field.name] for field in dataclasses.fields(feature) if values[field.name] != field.default
    }


def recorded(facts: Mapping[str, Any], columns: Iterable[str]) -> dict[str, FeatureSpec]:
    """The inferred features that a run recorded; empty if the configuration had them.

    Args:
      columns: of the files, for runs that recorded only names and types ("age float32, work string").
    """
    if "features" in facts:
        return {name: FeatureSpec(**values) for name, values in facts["features"].items()}
    types = dict(each.split(" ") for each in facts.get("features_taken", "").split(", ") if each)
    by_name = {name_of(column): column for column in columns}
    return {name: FeatureSpec(dtype=dtype, column=by_name.get(name, name)) for name, dtype in types.items()}
