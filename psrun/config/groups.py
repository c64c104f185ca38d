"""The files of the configuration: psrun's own, and those of the user's --config-dir folders, which come first."""

from __future__ import annotations

import importlib.resources
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from psrun.errors import ConfigError, Problem

OPTIONS = ("--config-dir", "-cd")
CONF = Path(str(importlib.resources.files("psrun.conf")))


def config_dirs(arguments: Sequence[str]) -> list[Path]:
    """The --config-dir folders in `arguments`."""
    folders = [after for option, after in itertools.pairwise(arguments) if option in OPTIONS]
    folders += [each.partition("=")[2] for each in arguments if each.startswith(f"{OPTIONS[0]}=")]
    return [Path(each).absolute() for each in folders]


def search_path(arguments: Sequence[str]) -> list[Path]:
    """The folders with configuration files, in the order of the search: of two files, the first one counts.

    The last of several --config-dir comes first.
    """
    return [*reversed(config_dirs(arguments)), CONF]


def choices(arguments: Sequence[str]) -> dict[str, dict[str, Path]]:
    """The choices of each group: name to file."""
    groups: dict[str, dict[str, Path]] = {}
    for folder in search_path(arguments):
        for path in sorted(folder.glob("*/*.yaml")):
            groups.setdefault(path.parent.name, {}).setdefault(path.stem, path)
    return groups


def description(path: Path) -> str:
    """The first line of the comment that a configuration file begins with; empty if it has none."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.startswith("# @package"):
            return line.lstrip("# ").rstrip(":") if line.startswith("#") else ""
    return ""


def keys(path: Path) -> set[str]:
    """The keys of a choice; none of a file that cannot be read."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return set()
    return {*map(str, values)} - {"defaults"} if isinstance(values, Mapping) else set()


def replaced(arguments: Sequence[str]) -> list[Path]:
    """The user's files that are used instead of psrun's of the same name."""
    its = choices([])
    return [
        path
        for group, named in choices(arguments).items()
        for choice, path in named.items()
        if choice in its.get(group, ()) and not path.samefile(its[group][choice])
    ]


def require_own_names(arguments: Sequence[str]) -> None:
    """Checks that no file of the user's would replace the configuration as a whole.

    Raises:
      ConfigError: names the user's file and psrun's.
    """
    if any(argument.startswith(("--config-name", "-cn")) for argument in arguments):
        return
    names = [(folder / its.name, its) for folder in config_dirs(arguments) for its in CONF.glob("*.yaml")]
    problems = [
        Problem(
            OPTIONS[0],
            f"{own} has the name of psrun's {its}, which lists the groups and the keys without a group; psrun does not "
            f"read it: move its keys to {own.parent / 'experiment' / 'NAME.yaml'}, and add experiment=NAME",
        )
        for own, its in names
        if own.is_file() and not own.samefile(its)
    ]
    if problems:
        raise ConfigError(problems)
