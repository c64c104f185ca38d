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
    stored_keys = {key.removesuffix(_VALUE) for key in stored if key.endswith(_VALUE)}
    keys = dict(_of_model(list(contents.model), stored_keys))
    for number, name in enumerate(contents.slots if slots else ()):
        keys[name] = _ITERATION if number == 0 else f"optimizer/_variables/{number}"
        if keys[name] not in stored_keys:
            raise KeyError(f"no value for {name}")
    return {
        **{name: key + _VALUE for name, key in keys.items()},
        **{key + _VALUE: key + _VALUE for key in stored_keys - set(keys.values())},
    }


def _of_model(names: list[str], stored_keys: Iterable[str]) -> Iterator[tuple[str, str]]:
    by_layer: dict[int, dict[str, str]] = {}
    for key in stored_keys:
        match = _LAYER.fullmatch(key)
        if match and _SLOT not in key:
            by_layer.setdefault(int(match["number"]), {})[match["rest"].rpartition("/")[2]] = key
    remaining = list(names)
    for _, attributes in sorted(by_layer.items()):
        own, remaining = remaining[: len(attributes)], remaining[len(attributes) :]
        for name in own:
            attribute = name.rpartition("/")[2]
            if attribute not in attributes:
                raise KeyError(f"no value for {name}")
            yield name, attributes[attribute]
    if remaining:
        raise KeyError(f"no value for {', '.join(remaining)}")
