"""What to write instead of a key that does not exist, and which experiment has what a configuration lacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from psrun import files
from psrun.config import groups, schema, targets
from psrun.config.schema import MISSING
from psrun.errors import Problem

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
_MAKES = re.compile(r"#\s+(psrun data synthesize .*)")  # a command in the comment of an experiment


def of_compile(name: str) -> str | None:
    """The message for an argument of Keras' `compile` or `fit` that is no key of the model; None for other names."""
    instead = _OF_COMPILE.get(name)
    return None if instead is None else f"is an argument of Keras that is no key of psrun's models: {instead}"


def of_the_environment(name: str) -> str:
    """The suggestion for a key that is set by a variable of the environment, without a blank; empty for other names."""
    if name.lower() in _OF_GPUS:
        return "GPUs are used where there are some; to choose, begin the command with CUDA_VISIBLE_DEVICES=0"
    if name.isupper():
        return f"An environment variable goes before the command: {name}=... psrun"
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
    if schema.is_near(name, keys):
        return schema.did_you_mean(name, keys)
    if not parent and (instead := of_the_environment(name)):
        return f" {instead}"
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


def for_argument(key: str, target: str, arguments: Sequence[str]) -> str:
    """The suggestion for a key that the callable of its choice may take as an argument; empty if it does not.

    Args:
      target: the dotted name of the callable.
      arguments: with the --config-dir folders.
    """
    group, _, name = key.rpartition(".")
    parameters = targets.parameters_of(target).keys() - targets.PROVIDED
    if name not in parameters:
        if meant := schema.near(name, parameters):
            return f"Did you mean +{group}.{meant}? {target} takes {meant}"
        if not targets.may_take_more(target):
            return ""
    argument = f"{key}=..."
    choice = None
    for each in arguments:
        if each.startswith(f"{key}="):
            argument = each
        if each.startswith(f"{group}="):
            choice = each.partition("=")[2]
    if name not in parameters:
        return f"If {target} takes {name}, write +{argument}"
    file = groups.choices(arguments).get(group, {}).get(choice or "")
    where = "" if file is None or file.is_relative_to(groups.CONF) else f", or add {name} to {files.from_here(file)}"
    return f"{target} takes {name}; write +{argument}{where}"


def _choices_with(group: str, key: str, arguments: Sequence[str]) -> list[str]:
    """The choices of a group that have a key: of these, the ones with most of the keys that the arguments set."""
    wanted = {each.partition("=")[0].partition(".")[2] for each in arguments if each.startswith(f"{group}.")} | {key}
    own_files = groups.choices(arguments).get(group, {})
    found = {name: groups.keys(path) & wanted for name, path in own_files.items()}
    most = max((len(has) for has in found.values() if key in has), default=0)
    return [name for name, has in found.items() if key in has and len(has) == most]


def with_removal(problem: Problem, arguments: Sequence[str]) -> Problem:
    """The problem; of a key that the experiment sets and the choice in the arguments lacks, with how to remove it."""
    group = problem.key.partition(".")[0]
    by_key = {groups.key_of(each): each for each in arguments}
    is_unknown = problem.message.startswith("no such key") and problem.key not in by_key
    if not is_unknown or not {"experiment", group} <= by_key.keys():
        return problem
    remedy = f"{by_key['experiment']} sets it; to remove it, add '~{problem.key}'"
    return Problem(problem.key, f"{problem.message} {remedy}")


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


@dataclass(frozen=True)
class _Experiment:
    """An experiment with files of data.

    Attributes:
      model, data: the names of the choices.
      keys: of the model, that it sets.
      paths: of the files.
      made_by: the command that makes the files; empty if its comment has none.
    """

    name: str
    model: str
    data: str
    keys: frozenset[str]
    paths: tuple[str, ...]
    made_by: str


def example_with_data(model: Any, data: Any) -> str:
    """What to write for an example of data: the experiment of the model, or else one with the same data choice.

    Args:
      model, data: the nodes of the configuration.

    Returns:
      Empty if no experiment has such data.
    """
    name = _name_of_model(_target_in(model))
    alike: list[_Experiment] = []
    for each in _experiments():
        if _target_of_choice("data", each.data) != _target_in(data):
            continue
        if each.model == name:
            return _example(each)
        alike.append(each)
    for each in alike:
        if name is not None and _default_data(name) == each.data and _takes(model, each.keys):
            return _example(each, f" model={name}")
    return _example(alike[0]) if alike else ""


def _takes(model: Any, keys: frozenset[str]) -> bool:
    """Whether a model needs no further keys, and has those that an experiment sets."""
    return isinstance(model, Mapping) and MISSING not in model.values() and keys <= model.keys()


def command_that_makes(path: str) -> str:
    """The command that makes the files of an experiment; empty if no experiment has this path."""
    commands = [each.made_by for each in _experiments() if path in each.paths]
    return commands[0] if commands else ""


def _example(experiment: _Experiment, model: str = "") -> str:
    makes = f"{experiment.made_by}, then " if experiment.made_by else ""
    return f"for example data: {makes}experiment={experiment.name}{model}"


def _experiments() -> Iterator[_Experiment]:
    """The experiments that set `data.path`: first those with the name of their model."""
    known = groups.choices([])["experiment"]
    models = groups.choices([])["model"]
    for name in sorted(known, key=lambda each: (each not in models, each)):
        node = _read_yaml(known[name])
        chosen = _chosen(node)
        own = node.get("data", {})
        if "path" not in own or "model" not in chosen:
            continue
        data = chosen.get("data") or _default_data(chosen["model"])
        paths = tuple(str(own[key]) for key in ("path", "eval_path") if key in own)
        made_by = _MAKES.search(known[name].read_text(encoding="utf-8"))
        keys = frozenset(node.get("model", {}))
        yield _Experiment(name, chosen["model"], data, keys, paths, made_by[1] if made_by else "")


def _chosen(node: Mapping[str, Any]) -> dict[str, str]:
    """The choices that the defaults list of a file overrides, by group."""
    chosen: dict[str, str] = {}
    for item in node.get("defaults", ()):
        if isinstance(item, Mapping):
            for key, choice in item.items():
                group = key.split()[-1].lstrip("/").partition("@")[0]
                chosen[group] = choice
    return chosen


def _default_data(model: str) -> str:
    """The data choice that a model's file makes."""
    return _chosen(_read_yaml(groups.CONF / "model" / f"{model}.yaml")).get("data", "")


def _name_of_model(target: str | None) -> str | None:
    for name in groups.choices([])["model"]:
        if _target_of_choice("model", name) == target:
            return name
    return None


def _target_of_choice(group: str, choice: str) -> str | None:
    return _target_in(_read_yaml(groups.CONF / group / f"{choice}.yaml"))


def _target_in(node: Any) -> str | None:
    return node.get("_target_") if isinstance(node, Mapping) else None


def _read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
