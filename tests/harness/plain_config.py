"""A configuration of choices and keys read from conf/ without Hydra, which takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from support import raw_config

from psrun.config import groups, parse
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError

MODEL_KEYS = dict.fromkeys(groups.keys(groups.CONF / "model_keys.yaml"))


def choice(group: str, name: str) -> dict[str, Any]:
    """The top-level keys that a choice of psrun's sets, resolved."""
    path = groups.CONF / group / f"{name}.yaml"
    plain: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    defaults = plain.pop("defaults", [])
    if path.read_text(encoding="utf-8").startswith("# @package _global_"):
        return plain
    if group in groups.SEVERAL_CHOICES:
        return {group: {name: plain}}
    keys = {group: {**MODEL_KEYS, **plain} if group == "model" else plain}
    for item in defaults:
        for target, other in item.items():
            keys |= choice(target.rpartition(".")[2], other)
    return keys


def plain_config(*arguments: str) -> dict[str, Any]:
    """The plain values of a configuration, as Hydra and psrun compose them of GROUP=NAME and KEY=VALUE.

    A value is YAML. Keys that do not exist are added.
    """
    raw = raw_config()
    for name, text in _pairs(arguments):
        if name in parse.GROUPS:
            raw |= choice(name, text)
    for name, text in _pairs(arguments):
        if name not in parse.GROUPS:
            put(raw, name, yaml.safe_load(text))
    return raw


def put(raw: dict[str, Any], key: str, value: Any) -> None:
    """Sets a key of plain values."""
    *above, name = key.split(".")
    node = raw
    for each in above:
        node = node[each]
    node[name] = value


def loaded(*arguments: str) -> RunConfig:
    return parse.load(plain_config(*arguments))


def keys_of_problems(raw: dict[str, Any]) -> set[str]:
    """The keys of the problems of a configuration, which has some."""
    with pytest.raises(ConfigError) as raised:
        parse.load(raw)
    return {problem.key for problem in raised.value.problems}


def _pairs(arguments: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for argument in arguments:
        name, _, text = argument.partition("=")
        yield name, text
