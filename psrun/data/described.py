"""Features of a table: as the configuration describes them, or as the first rows of a file let them be taken."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psrun import schema
from psrun.data.blocks import TYPES
from psrun.data.columns import CONVERSIONS, Rows, Wanted, number
from psrun.data.moments import Scale
from psrun.data.source import Feature
from psrun.errors import ConfigError, DataError, Problem

_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.-]*")  # what Keras and TensorFlow take for the name of a layer


@dataclass(frozen=True)
class Described:
    """What `data.features.NAME` may say.

    Attributes:
      column: its name in the files; None where it is that of the feature.
      width: values of a row.
      num_buckets: ids that values without a vocabulary are hashed to; None for strings: data.num_buckets.
      vocabulary: a list of values, or a file with one a line; None for none.
      logarithm: whether models take log(1 + x).
      default: stands where a value is missing; None: such a row is bad.
    """

    dtype: str = schema.one_of("float32", "int64", "string", default="float32")
    column: str | None = None
    width: int = dataclasses.field(default=1, metadata={"at_least": 1, "or_else": None})
    num_buckets: int | None = dataclasses.field(default=None, metadata={"at_least": 1, "or_else": None})
    vocabulary: Any = None
    logarithm: bool = False
    default: Any = None

    def wanted(self, name: str) -> Wanted:
        return Wanted(self.column or name, self.dtype, self.width, self.default)

    def feature(self, num_buckets: int, scale: Scale | None) -> Feature:
        """What models are told; of floats with their scale."""
        shape, dtype = (self.width,), TYPES[self.dtype]
        if self.vocabulary is not None:
            file = isinstance(self.vocabulary, str)
            known = Path(self.vocabulary).expanduser().absolute() if file else tuple(self.vocabulary)
            return Feature(shape, dtype, known)
        if scale is None:
            buckets = num_buckets if self.dtype == "string" else None
            return Feature(shape, dtype, num_buckets=self.num_buckets or buckets)
        mean, deviation = (scale.log_mean, scale.log_deviation) if self.logarithm else (scale.mean, scale.deviation)
        return Feature(shape, dtype, logarithm=self.logarithm, mean=mean, deviation=deviation)


def read(node: Mapping[str, Any]) -> dict[str, Described]:
    """`data.features`, checked.

    Raises:
      ConfigError: with all that is wrong with it.
    """
    problems: list[Problem] = []
    features = {}
    if not isinstance(node, Mapping) or not node:
        raise ConfigError([Problem("data.features", f"is {node!r}, must hold features by name, or be null")])
    for name, options in node.items():
        key = f"data.features.{name}"
        described = schema.read(Described, options or {}, key=key, problems=problems)
        if not _NAME.fullmatch(str(name)):
            message = "cannot be the name of a layer; use letters, digits and _ . - and say column: for the file's own"
            problems.append(Problem(key, message))
        if described is not None:
            features[str(name)] = described
            problems += [Problem(f"{key}.{option}", message) for option, message in _wrong(described)]
    if problems:
        raise ConfigError(problems)
    return features


def _wrong(feature: Described) -> Iterable[tuple[str, str]]:
    """Options that do not go together, and what to do."""
    if feature.dtype == "float32" and feature.num_buckets is not None:
        yield "num_buckets", "is for strings and integers; leave it out, or choose their dtype"
    if feature.vocabulary is not None and feature.num_buckets is not None:
        yield "num_buckets", "is for values without a vocabulary; leave out one of both"
    if feature.logarithm and feature.dtype != "float32":
        yield "logarithm", "is for dtype: float32"
    if feature.default is not None:
        try:
            CONVERSIONS[feature.dtype](feature.default)
        except ValueError as error:
            yield "default", str(error)
    if feature.vocabulary is not None:
        yield from (("vocabulary", message) for message in _vocabulary(feature.dtype, feature.vocabulary))


def _vocabulary(dtype: str, vocabulary: Any) -> Iterable[str]:
    kind = {"string": str, "int64": int}.get(dtype)
    if kind is None:
        yield "is for strings and integers; leave it out, or choose their dtype"
    elif isinstance(vocabulary, str):
        if dtype != "string":
            yield "must be a list; files are for strings"
        elif not Path(vocabulary).expanduser().is_file():
            yield f"there is no file {vocabulary}"
    elif not isinstance(vocabulary, list) or not vocabulary or any(type(value) is not kind for value in vocabulary):
        yield f"must be a list of values of type {dtype}" + (", or a file with one a line" if kind is str else "")


def taken(rows: Rows, label: str, *, parse: bool, name: str) -> dict[str, Described]:
    """A feature for each column but the label: numbers as float32, and strings.

    Args:
      rows: the first ones of a file.
      parse: whether text in which all values are numbers is taken for numbers.
      name: of the file.

    Raises:
      ConfigError: what a column holds is neither, or its name cannot be made a feature's.
      DataError: there is no row to see it by.
    """
    if not len(rows.numbers):
        raise DataError(f"there is no row in {name} to take the features from; name them: data.features")
    features: dict[str, Described] = {}
    for column, values in rows.columns.items():
        if column == label:
            continue
        feature = re.sub(r"[^A-Za-z0-9_.-]", "_", column).lstrip("_-")
        dtype = _dtype(values, parse)
        if dtype is None or not feature or feature in features:
            why = "is neither numbers nor strings" if dtype is None else "has no name that a feature can have"
            raise ConfigError([Problem("data.features", f"column {column!r} of {name} {why}; name the features")])
        features[feature] = Described(dtype=dtype, column=column, width=_width(values))
    return features


def _dtype(values: np.ndarray, parse: bool) -> str | None:
    if values.dtype.kind in "fiub":
        return "float32"
    items = [item for value in values for item in _items(value) if item is not None]
    if items and all(isinstance(item, str | bytes) for item in items):
        said = [item for item in items if item.strip()]
        return "float32" if parse and said and all(map(_is_number, said)) else "string"
    return "float32" if items and all(map(_is_number, items)) else None


def _is_number(item: Any) -> bool:
    try:
        number(item)
    except ValueError:
        return False
    return True


def _items(value: Any) -> Sequence[Any] | np.ndarray:
    return value if isinstance(value, list | tuple | np.ndarray) else (value,)


def _width(values: np.ndarray) -> int:
    if values.ndim > 1:
        return int(np.prod(values.shape[1:]))
    return max(1, next((len(_items(value)) for value in values if value is not None), 1))
