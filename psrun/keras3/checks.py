"""What of a Keras 3 model cannot be trained on parameter servers. Imports Keras 3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.keras3 import internals
from psrun.keras3.layers import TableLayer

# Larger tables of keras.layers.Embedding are refused: each of its ids is checked by nobody, and neighbouring ids, which
# are often alike in how frequent they are, share a parameter server.
MAX_ROWS = 100_000
_STEP_METHODS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics", "fit", "evaluate")
# Attributes of a model that was compiled, whose metrics are not used, and of its layers, which are checked one by one.
_OF_COMPILE = ("_compile_metrics", "_loss_tracker", "_metrics", "_layers", "_tracker")


def check_methods(model: keras.Model) -> None:
    """Raises ConfigError if a model has a training step that psrun would not call."""
    problems = []
    for name in _STEP_METHODS:
        own = getattr(getattr(model, name), "__func__", None)
        if own is not getattr(keras.Model, name):
            message = (
                f"{type(model).__name__} overrides {name}, which parameter servers cannot use: it is written for Keras "
                "3's optimizers and metrics. Remove it, and write the step with trainer=own_loop; or derive the model "
                "from tf_keras.Model"
            )
            problems.append(Problem("model", message))
    if problems:
        raise ConfigError(problems)


def check_layers(model: keras.Model) -> None:
    """Raises ConfigError if layers of a model cannot be trained, or cannot be trained well."""
    problems = [Problem("model", text) for layer in internals.layers_within(model) for text in _problems(layer)]
    for variable in model.weights:
        if variable.constraint is not None:
            kind = type(variable.constraint).__name__
            message = f"{variable.path} has the constraint {kind}, which only Keras 3's optimizers apply; remove it"
            problems.append(Problem("model", message))
        if variable.overwrite_with_gradient:
            message = f"{variable.path} is replaced by its gradient (float8), which only Keras 3's optimizers do"
            problems.append(Problem("model", f"{message}; choose another dtype policy"))
    if problems:
        raise ConfigError(problems)


def _problems(layer: keras.Layer) -> Iterator[str]:
    if layer.compute_dtype == "float16":
        yield f"{layer.name} computes in float16, whose losses only Keras 3's optimizers scale; use mixed_bfloat16"
    if isinstance(layer, keras.layers.Embedding) and layer.input_dim > MAX_ROWS:
        yield (
            f"{layer.name} is a keras.layers.Embedding of {layer.input_dim:,} rows, more than {MAX_ROWS:,}; use "
            f"psrun.layers.keras3.Embedding({layer.input_dim}, {layer.output_dim})"
        )
    for name, value in vars(layer).items():
        if name in _OF_COMPILE or name.startswith("_self_"):
            continue
        for each in _held(value):
            if isinstance(each, keras.Metric):
                yield (
                    f"{layer.name}.{name} is a metric of Keras 3, which loses updates on parameter servers; name a "
                    "metric in model.metrics"
                )
            elif isinstance(each, tf_keras.layers.Layer) and not isinstance(layer, TableLayer):
                yield mixed(f"{layer.name}.{name} is {_title(each)} in a model of Keras 3")


def _held(value: Any) -> Iterator[Any]:
    """An attribute's value, or the values in its lists and dicts."""
    if isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _held(each)
    else:
        yield value


def mixed(what: str) -> str:
    """The message about a model with layers of both libraries."""
    return f"{what}: one model cannot have layers of both. Use either keras.layers or tf_keras.layers"


def _title(layer: Any) -> str:
    return f"tf_keras.layers.{type(layer).__name__}"
