"""What to write instead of a key that does not exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from psrun.config import groups, schema

# Arguments of Keras' compile that are no keys of the model, and what to do instead.
_OF_COMPILE = {
    "loss_weights": "put the weights into losses of your own: model.loss={_target_: mine.loss}, or one for each output "
    "in model.loss.OUTPUT",
    "weighted_metrics": "use model.metrics, which psrun weights where the data has weights",
    "run_eagerly": "set trainer.run_eagerly=true, with cluster=none",
    "steps_per_execution": "set trainer.steps_per_execution",
    "jit_compile": "psrun does not compile with XLA",
    "optimizer": "choose optimizer=NAME",
    "sample_weight": "name the column of the weights: data.weight, with data=table",
}

_OF_GPUS = ("cuda", "cuda_visible_devices", "device", "devices", "gpu", "gpus")


def of_compile(name: str) -> str | None:
    """The message for an argument of Keras' `compile` or `fit` that is no key of the model; None for other names."""
    instead = _OF_COMPILE.get(name)
    return None if instead is None else f"is an argument of Keras that is no key of psrun's models: {instead}"


def of_the_environment(name: str) -> str:
    """The suggestion for a key that is set by a variable of the environment, without a blank; empty for other names."""
    if name.lower() in _OF_GPUS:
        return "GPUs are used where there are some; to choose, begin the command with CUDA_VISIBLE_DEVICES=0"
    if name.isupper():
        return f"A variable of the environment stands before the command: {name}=... psrun"
    return ""


def no_such_feature(name: str, features: Iterable[str]) -> str:
    """The message for the name of a feature that the data does not have."""
    guess = schema.did_you_mean(name, features)
    return f"is '{name}', but the data has no such feature.{guess} A column of a table is one if it is in data.features"


def for_key(key: str, keys: Collection[str], composed: Mapping[str, Any], arguments: Sequence[str]) -> str:
    """The suggestion for a key that does not exist, beginning with a blank.

    Args:
      keys: those that its parent has.
      composed: the configuration as plain values.
      arguments: with the --config-dir folders.
    """
    parent, _, name = key.rpartition(".")
    if not parent and (instead := of_the_environment(name)):
        return f" {instead}"
    if schema.is_near(name, keys):
        return schema.did_you_mean(name, keys)
    if parent in groups.SEVERAL_CHOICES:
        places = [f"{parent}.{choice}.{name}" for choice in _choices_with(parent, name, arguments)]
        return f" Did you mean {' or '.join(places)}?" if places else schema.did_you_mean(name, keys)
    group, _, choice = parent.partition(".")
    if group in groups.SEVERAL_CHOICES and not keys:  # that is not chosen
        known = groups.choices(arguments).get(group, {})
        own = groups.keys(known[choice]) - {"kind"} if choice in known else set()
        return f" It is a key of {group}={choice}." if name in own else schema.did_you_mean(name, own or known)
    elsewhere = [f"{parent}={choice}" for choice in _choices_with(parent, name, arguments)]
    if elsewhere:
        return f" It is a key of {', '.join(elsewhere)}."
    return place_of(name, composed) or schema.did_you_mean(name, keys)


def _choices_with(group: str, key: str, arguments: Sequence[str]) -> list[str]:
    """The choices of a group that have a key: of these, the ones with most of the keys that the arguments set."""
    wanted = {each.partition("=")[0].partition(".")[2] for each in arguments if each.startswith(f"{group}.")} | {key}
    found = {name: groups.keys(path) & wanted for name, path in groups.choices(arguments).get(group, {}).items()}
    most = max((len(has) for has in found.values() if key in has), default=0)
    return [name for name, has in found.items() if key in has and len(has) == most]


def place_of(name: str, composed: Mapping[str, Any]) -> str:
    """The suggestion for a key without a group that belongs to one, beginning with a blank; empty without one."""
    places = places_of(name, composed)
    return f" Did you mean {' or '.join(places)}?" if places else ""


def places_of(name: str, composed: Mapping[str, Any]) -> list[str]:
    """The keys that end with `name`, or with the name that psrun has for it."""
    return list(_places(name, composed))


def _places(name: str, node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The keys of the configuration that end with `name`, or with the name that psrun has for it."""
    for key, value in node.items():
        where = f"{path}{key}"
        if key in (name, schema.ALSO_CALLED.get(name)):
            yield where
        elif isinstance(value, Mapping):
            yield from _places(name, value, f"{where}.")
