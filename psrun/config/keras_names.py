"""The losses, metrics and class weights of the `model` group, checked before TensorFlow is imported."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from psrun.config import schema, targets
from psrun.config.run_config import ModelKeys
from psrun.errors import Problem
from psrun.metrics import names as own_names

# Names that Keras resolves by the shapes of labels and predictions; they are in no module.
BY_SHAPE = frozenset({"accuracy", "acc", "crossentropy", "ce"})
# Parameters of every loss and metric; the configuration does not set them.
CALLED_WITH = ("y_true", "y_pred")
_RANKING = "psrun.recsys.metrics.ranking."
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
    """Whether tf-keras or psrun has a metric of this name."""
    return name in metrics() or name.lower() in BY_SHAPE or _parsed(name) is not None


def names_of_lists(keys: ModelKeys) -> list[str]:
    """The names, such as ndcg@10, or the classes of the metrics of lists in `model.metrics`."""
    nodes = [node.get("_target_") if isinstance(node, Mapping) else node for _, node in _metrics(keys.metrics)]
    classes = [str(node).removeprefix(_RANKING) for node in nodes if str(node).startswith(_RANKING)]
    return [*(str(node) for node in nodes if _parsed(node)), *classes]


def is_of_items(name: str) -> bool:
    """Whether a metric of `names_of_lists` is about all items."""
    return name.partition("@")[0].lower() in own_names.OF_ITEMS


def _parsed(name: Any) -> Any:
    try:
        return own_names.parse(name) if isinstance(name, str) else None
    except ValueError:
        return None


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


@functools.cache
def losses() -> frozenset[str]:
    """The names of Keras' losses."""
    return targets.names_in("tf_keras.losses") - _NO_NAMES


@functools.cache
def metrics() -> frozenset[str]:
    """The names of Keras' metrics, and of those of psrun that need no length of a list."""
    return (targets.names_in("tf_keras.metrics") - _NO_NAMES) | BY_SHAPE | {*own_names.COUNTERS}


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
    elif kind == "metrics" and _is_of_lists(node, key, problems):
        return
    elif node not in names and node.lower() not in BY_SHAPE:
        own = " Name your own callable with _target_." if "." in node else ""
        also = own_names.EXAMPLES if kind == "metrics" else ()
        guess = schema.did_you_mean(node, [*names, *also])
        problems.append(Problem(key, f"is '{node}', which is not in tf_keras.{kind}.{guess}{own}"))


def _is_of_lists(name: str, key: str, problems: list[Problem]) -> bool:
    """Whether a name is that of a metric of lists; adds the problem with its length, if there is one."""
    try:
        return own_names.parse(name) is not None
    except ValueError as error:
        problems.append(Problem(key, f"{name} {error}"))
        return True


def _of_class_weight(node: Any) -> Iterator[Problem]:
    key = "model.class_weight"
    if not isinstance(node, Mapping) or not node:
        yield Problem(key, f"is {node!r}, must be a weight for each class, such as {{0: 1.0, 1: 5.0}}")
        return
    for name, weight in node.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight >= 0:
            yield Problem(f"{key}.{name}", f"is {weight!r}, must be a number of 0 or more")
