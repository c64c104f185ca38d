"""The losses, metrics and class weights of the `model` group, checked before TensorFlow is imported."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from psrun import parts
from psrun.config import schema, targets
from psrun.config.run_config import ModelKeys
from psrun.errors import Problem
from psrun.metrics import names as own_names

# Names that Keras resolves by the shapes of labels and predictions; they are in no module.
BY_SHAPE = frozenset({"accuracy", "acc", "crossentropy", "ce"})
# Parameters of every loss and metric; the configuration does not set them.
CALLED_WITH = ("y_true", "y_pred")
# By the class of a legacy optimizer, the one to use where it has another name. psrun refuses Nadam.
_INSTEAD_OF_LEGACY = {"Nadam": "Adam", "OptimizerV2": "Optimizer"}
_NO_NAMES = frozenset(
    {"Loss", "MeanMetricWrapper", "Metric", "Reduction", "deserialize", "experimental", "get", "serialize"}
)


def problems(keys: ModelKeys) -> list[Problem]:
    """The problems of `model.loss`, `model.metrics` and `model.class_weight` that are visible without Keras."""
    problems = list[Problem]()
    for key, node in _losses(keys.loss):
        _check(node, key, "losses", problems)
    for key, node in _metrics(keys.metrics):
        _check(node, key, "metrics", problems)
    if keys.class_weight is not None:
        problems += _of_class_weight(keys.class_weight)
    return problems


def is_metric(name: str) -> bool:
    """Whether tf-keras, psrun or a part has a metric of this name."""
    return is_of_keras(name) or name in own_names.COUNTERS or _offered_class(name) is not None


def is_of_keras(name: str) -> bool:
    """Whether tf-keras has a metric of this name."""
    return name in _of_keras() or name.lower() in BY_SHAPE


def gathered_metrics(keys: ModelKeys, classes: Collection[str]) -> list[str]:
    """The metrics of gathered examples in `model.metrics` that are of some classes: first all that have a name there.

    Args:
      classes: as `psrun.parts.Part.metrics` has them.
    """
    by_name = []
    by_target = []
    for _, node in _metrics(keys.metrics):
        if isinstance(node, Mapping):
            module, _, name = str(node.get("_target_")).rpartition(".")
            if f"{module}:{name}" in classes:
                by_target.append(name)
        elif isinstance(node, str) and not is_of_keras(node) and _offered_class(node) in classes:
            by_name.append(node)
    return by_name + by_target


def _offered_class(name: str) -> str | None:
    """The class of the metric that a part offers by this name; None if none does, or its number is not valid."""
    try:
        offered = parts.metric(name)
    except ValueError:
        return None
    return None if offered is None else offered[0]


def problem_of_keras3(target: str, kind: str) -> str | None:
    """The problem of a `_target_` of Keras 3; None for other targets.

    Args:
      kind: the module of tf-keras that has it: optimizers or callbacks.
    """
    library, _, rest = target.partition(".")
    if library != "keras":
        return None
    name = rest.rpartition(".")[2]
    why = {
        "optimizers": "Keras 3's optimizers lose updates on parameter servers",
        "callbacks": "tf-keras trains, also models of Keras 3, and does not call it",
    }[kind]
    return f"is {target}, which is of Keras 3: {why}; use tf_keras.{kind}.{name}"


def problem_of_legacy_optimizer(target: str) -> str | None:
    """The problem of a `_target_` that is a legacy optimizer by its name; None for other targets."""
    if not target.startswith(("tf_keras.", "tensorflow.")) or ".optimizers.legacy." not in target:
        return None
    kind = target.rpartition(".")[2]
    return f"is {target}, {unsupported_legacy(kind)}"


def unsupported_legacy(kind: str) -> str:
    """What is said about a legacy optimizer of tf-keras, after its name: the reason and the replacement.

    Args:
      kind: the name of its class.
    """
    replacement = _INSTEAD_OF_LEGACY.get(kind, kind)
    return f"a legacy optimizer, which psrun does not support; use tf_keras.optimizers.{replacement}"


@functools.cache
def losses() -> frozenset[str]:
    """The names of Keras' losses."""
    return targets.names_in("tf_keras.losses") - _NO_NAMES


@functools.cache
def metrics() -> frozenset[str]:
    """The names of Keras' metrics, and of psrun's own."""
    return _of_keras() | BY_SHAPE | {*own_names.COUNTERS}


@functools.cache
def _of_keras() -> frozenset[str]:
    return targets.names_in("tf_keras.metrics") - _NO_NAMES


def _losses(node: Any) -> Iterator[tuple[str, Any]]:
    """Each loss with its key."""
    if isinstance(node, Mapping) and "_target_" not in node:
        yield from ((f"model.loss.{output}", loss) for output, loss in node.items())
    elif node is not None:
        yield "model.loss", node


def _metrics(node: Any, key: str = "model.metrics") -> Iterator[tuple[str, Any]]:
    """Each metric with its key."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield f"{key}[{index}]", item
    elif isinstance(node, Mapping) and "_target_" not in node and key == "model.metrics":
        for output, item in node.items():
            yield from _metrics(item, f"{key}.{output}")
    elif node is not None:
        yield key, node


def _check(node: Any, key: str, kind: str, problems: list[Problem]) -> None:
    names = losses() if kind == "losses" else metrics()
    if isinstance(node, Mapping) and "_target_" in node:
        targets.read(node, key=key, problems=problems, called_with=CALLED_WITH)
    elif not isinstance(node, str):
        message = f"is {node!r}, must be a name in tf_keras.{kind}, or a _target_ with its arguments"
        problems.append(Problem(key, message))
    elif node in names or node.lower() in BY_SHAPE:
        return
    elif kind == "metrics":
        problems += _of_other_metric(node, key)
    else:
        problems.append(_no_such_name(node, key, kind, names))


def _of_other_metric(name: str, key: str) -> Iterator[Problem]:
    """The problem of a name that is not one of `metrics`."""
    try:
        if parts.metric(name) is not None:
            return
    except ValueError as error:
        yield Problem(key, f"{name} {error}")
        return
    offered = [each.replace("@K", "@10") for each in parts.metrics()]
    known = [*metrics(), *offered]
    problem = _no_such_name(name, key, "metrics", known)
    yield problem if schema.is_near(name, known) else Problem(key, parts.with_missing(problem.message))


def _no_such_name(name: str, key: str, kind: str, names: Collection[str]) -> Problem:
    own = " Name your own callable with _target_." if "." in name else ""
    guess = schema.did_you_mean(name, names)
    return Problem(key, f"is '{name}', which is not in tf_keras.{kind}.{guess}{own}")


def _of_class_weight(node: Any) -> Iterator[Problem]:
    key = "model.class_weight"
    if not isinstance(node, Mapping) or not node:
        yield Problem(key, f"is {node!r}, must be a weight for each class, such as {{0: 1.0, 1: 5.0}}")
        return
    for name, weight in node.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight >= 0:
            yield Problem(f"{key}.{name}", f"is {weight!r}, must be a number of 0 or more")
