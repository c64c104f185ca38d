"""A value of any type in any key of conf/ is accepted, or refused with the name of the key; there is no traceback."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from omegaconf import OmegaConf
from support import raw_config

from psrun.config import groups, parse
from psrun.errors import ConfigError

# An integer, a number, null, a boolean, a list, no text, mappings, text with blanks.
VALUES = (3, float("nan"), None, True, [1], "", {"a": 1}, {1: [None]}, "two words")


def choice_of(path: Any) -> dict[str, Any]:
    """The keys of a choice, with those that psrun reads of every model."""
    node: Any = OmegaConf.to_container(OmegaConf.load(path))
    node.pop("defaults", None)
    models = dict.fromkeys(groups.keys(groups.CONF / "model_keys.yaml"))
    return {**models, **node} if path.parent.name == "model" else node


def paths_of(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all keys, also of those with mappings."""
    for name, value in node.items():
        yield (*path, name)
        if isinstance(value, Mapping):
            yield from paths_of(value, (*path, name))


def faults(raw: dict[str, Any], path: tuple[str, ...], values: Iterable[Any]) -> Iterator[str]:
    """What is wrong with psrun's answers to values of a key."""
    for value in values:
        tried = copy.deepcopy(raw)
        node = tried
        for name in path[:-1]:
            node = node[name]
        node[path[-1]] = value
        try:
            parse.load(tried)
        except ConfigError as error:
            for problem in error.problems:
                if not problem.key or not problem.message.strip() or "Hydra" in problem.message:
                    yield f"{'.'.join(path)}={value!r}: {problem}"
        except Exception as error:
            yield f"{'.'.join(path)}={value!r}: {type(error).__name__}: {error}"


@pytest.mark.parametrize("part", [4, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("group", [*parse.GROUPS, None])
def test_values_of_any_type_in_every_key(group, part):
    """A quarter of the values for each key, other ones for the next key; or all."""
    raw = raw_config()
    files = groups.choices([])[group].values() if group else ()
    raws = [{**raw, group: choice_of(path)} for path in files] if group else [raw]
    seen = set[tuple[str, str]]()
    found = list[str]()
    for each in raws:
        nodes = {name: node for name, node in each.items() if (name == group if group else name not in parse.GROUPS)}
        for path in paths_of(nodes):
            if (path[0], path[-1]) not in seen:  # choices and jobs share keys
                seen.add((path[0], path[-1]))
                found += faults(each, path, VALUES[len(seen) % part :: part])
    assert seen
    assert found == []
