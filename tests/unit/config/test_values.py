"""A value of any type in any key of conf/ is accepted, or refused with the name of the key; there is no traceback."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from plain_config import choice, plain_config, put

from psrun.config import groups, parse
from psrun.errors import ConfigError

# An integer, a number, null, a boolean, a list, no text, mappings, text with blanks.
VALUES = (3, float("nan"), None, True, [1], "", {"a": 1}, {1: [None]}, "two words")


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
        put(tried, ".".join(path), value)
        try:
            parse.load(tried)
        except ConfigError as error:
            for problem in error.problems:
                if not problem.key or not problem.message.strip() or "Hydra" in problem.message:
                    yield f"{'.'.join(path)}={value!r}: {problem}"
        except Exception as error:
            yield f"{'.'.join(path)}={value!r}: {type(error).__name__}: {error}"


@pytest.mark.parametrize("part", [len(VALUES), pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("group", [*parse.GROUPS, None])
def test_values_of_any_type_in_every_key(group, part):
    """One of the values for each key, another one for the next key; or all."""
    raw = plain_config()
    names = groups.choices([])[group] if group else ()
    raws = [{**raw, group: choice(group, name)[group]} for name in names] if group else [raw]
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
