"""Weights of the examples of a table: the column `data.weight`, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from psrun.config.schema import did_you_mean
from psrun.data import formats, notations
from psrun.data.columns import Wanted
from psrun.data.statistics import Scale
from psrun.errors import ConfigError, Problem

KEY = "data.weight"


def key_of(name: str, want: Wanted) -> str:
    """The key of the configuration that names a column."""
    return f"data.features.{name}" if want.weights_of is None else f"data.features.{want.weights_of}.weights"


def problems(weight: str, label: str, features: Mapping[str, Wanted]) -> Iterator[Problem]:
    """Reasons why a column cannot have the weights: it is used for something else."""
    if weight == label:
        yield Problem(KEY, f"{weight!r} is the label; choose another column")
    for name, want in features.items():
        if weight in (name, want.column):
            message = f"{weight!r} is also {key_of(name, want)}; choose another column, or remove the feature"
            yield Problem(KEY, message)


def check_column(weight: str, name: str, values: pa.Array, known: Callable[[], Sequence[str]]) -> None:
    """Checks the first values of the column in a file.

    Args:
      name: of the file.
      known: returns column names for suggestions.

    Raises:
      ConfigError: all of them are missing, or none of them is a number.
    """
    num_rows = len(values)
    values = formats.decoded(values)
    if types.is_fixed_size_list(values.type) or types.is_list(values.type):  # of one value, as in TFRecord
        values = values.flatten()
    if types.is_binary(values.type):
        values = values.cast(pa.string())
    present = values.drop_null()
    if types.is_string(values.type):
        present = present.filter(pc.invert(notations.is_missing(present)))
    if not len(present) and num_rows:
        message = f"column {weight!r} has no values in the first rows of {name}.{did_you_mean(weight, known())}"
        raise ConfigError([Problem(KEY, message)])
    if types.is_string(values.type) and len(present) and notations.numbers(present).null_count == len(present):
        message = f"column {weight!r} of {name} holds strings, such as {present[0].as_py()!r}"
        raise ConfigError([Problem(KEY, f"{message}; choose a column of numbers")])


def check_means(train: Scale, evaluation: Scale | None) -> Iterator[str]:
    """Warnings about the means of the weights; `evaluation` is None where those examples have none.

    Raises:
      ConfigError: all training examples have the weight 0.
    """
    if train.mean == 0:
        raise ConfigError([Problem(KEY, "every training example has the weight 0; choose another column")])
    if evaluation is not None and evaluation.mean == 0:
        yield f"{KEY}: every evaluation example has the weight 0, so its metrics mean nothing"
