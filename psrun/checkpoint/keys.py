"""The keys of values in checkpoints that do not record them, as psrun 0.1.0 wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from psrun.checkpoint.manifest import Contents

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_LAYER = re.compile(r"model/layer_with_weights-(?P<number>\d+)/(?P<rest>.+)")
_ITERATION = "optimizer/_iterations"
_SLOT = "/.OPTIMIZER_SLOT/"  # of an optimizer of before Keras 2.11, beside the variable


def of_earlier(contents: Contents, stored: Iterable[str], *, slots: bool = True) -> dict[str, str]:
    """By name, the key of each variable of a functional model and of an optimizer of tf-keras.

    TensorFlow does not store the names of variables in shards. Manifests list variables in the order in which the model
    and the optimizer have them, and keys number layers and slots in the same order.

    Args:
      stored: the keys in the checkpoint.
      slots: whether those of the optimizer must be found.

    Raises:
      KeyError: names and keys do not match.
    """
    known = {key.removesuffix(_VALUE) for key in stored if key.endswith(_VALUE)}
    keys = dict(_of_model(list(contents.model), known))
    for number, name in enumerate(contents.slots if slots else ()):
        keys[name] = _ITERATION if number == 0 else f"optimizer/_variables/{number}"
        if keys[name] not in known:
            raise KeyError(f"no value for {name}")
    return {
        **{name: key + _VALUE for name, key in keys.items()},
        **{key + _VALUE: key + _VALUE for key in known - set(keys.values())},
    }


def _of_model(names: list[str], known: Iterable[str]) -> Iterator[tuple[str, str]]:
    by_layer: dict[int, dict[str, str]] = {}
    for key in known:
        match = _LAYER.fullmatch(key)
        if match and _SLOT not in key:
            by_layer.setdefault(int(match["number"]), {})[match["rest"].rpartition("/")[2]] = key
    left = list(names)
    for _, attributes in sorted(by_layer.items()):
        own, left = left[: len(attributes)], left[len(attributes) :]
        for name in own:
            attribute = name.rpartition("/")[2]
            if attribute not in attributes:
                raise KeyError(f"no value for {name}")
            yield name, attributes[attribute]
    if left:
        raise KeyError(f"no value for {', '.join(left)}")
