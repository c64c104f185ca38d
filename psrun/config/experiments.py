"""The experiments of psrun as a source of data: which of them has what a configuration lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from psrun.config import groups
from psrun.config.schema import MISSING

_MAKES = re.compile(r"#\s+(psrun data synthesize .*)")  # a command in the comment of an experiment


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


def with_data_for(model: Any, data: Any) -> str:
    """What to write for an example of data: the experiment of the model, or else one with the same data choice.

    Args:
      model, data: the nodes of the configuration.

    Returns:
      Empty if no experiment has such data.
    """
    name = _name_of_model(_target(model))
    alike: list[_Experiment] = []
    for each in _experiments():
        if _target_of("data", each.data) != _target(data):
            continue
        if each.model == name:
            return _sentence(each)
        alike.append(each)
    for each in alike:
        if name is not None and _default_data(name) == each.data and _takes(model, each.keys):
            return _sentence(each, f" model={name}")
    return _sentence(alike[0]) if alike else ""


def _takes(model: Any, keys: frozenset[str]) -> bool:
    """Whether a model needs no further keys, and has those that an experiment sets."""
    return isinstance(model, Mapping) and MISSING not in model.values() and keys <= model.keys()


def command_that_makes(path: str) -> str:
    """The command that makes the files of an experiment; empty if no experiment has this path."""
    commands = [each.made_by for each in _experiments() if path in each.paths]
    return commands[0] if commands else ""


def _sentence(experiment: _Experiment, model: str = "") -> str:
    makes = f"{experiment.made_by}, then " if experiment.made_by else ""
    return f"for example data: {makes}experiment={experiment.name}{model}"


def _experiments() -> Iterator[_Experiment]:
    """The experiments that set `data.path`: first those with the name of their model."""
    known = groups.choices([])["experiment"]
    models = groups.choices([])["model"]
    for name in sorted(known, key=lambda each: (each not in models, each)):
        node = _read(known[name])
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
    return _chosen(_read(groups.CONF / "model" / f"{model}.yaml")).get("data", "")


def _name_of_model(target: str | None) -> str | None:
    for name in groups.choices([])["model"]:
        if _target_of("model", name) == target:
            return name
    return None


def _target_of(group: str, choice: str) -> str | None:
    return _target(_read(groups.CONF / group / f"{choice}.yaml"))


def _target(node: Any) -> str | None:
    return node.get("_target_") if isinstance(node, Mapping) else None


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
