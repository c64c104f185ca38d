"""The files of the configuration: psrun's own, and those of the user's --config-dir folders, which come first."""

from __future__ import annotations

import importlib.resources
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from psrun.errors import ConfigError, Problem

OPTIONS = ("--config-dir", "-cd")
CONF = Path(str(importlib.resources.files("psrun.conf")))
ONE_CHOICE = frozenset(path.name for path in CONF.iterdir() if path.is_dir())  # groups of which a run has one choice
_KEYS = ("mode", "seed", "resume", "restore")  # keys without a group and with a single value


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
    if not config_dirs(arguments):  # most runs: no file is looked at
        return []
    its = choices([])
    return [
        path
        for group, named in choices(arguments).items()
        for choice, path in named.items()
        if choice in its.get(group, ()) and not path.samefile(its[group][choice])
    ]


def misplaced(group: str, choice: str, arguments: Sequence[str]) -> str:
    """What to do about a user's file of a choice that is where it is not searched; empty if there is none."""
    for folder in config_dirs(arguments):
        if (file := folder / group / f"{choice}.yml").is_file():
            return f"{file} is not read; name it {file.with_suffix('.yaml').name}."
        if (file := folder / f"{choice}.yaml").is_file() and folder.name == group:
            return f"{file} is a file of the group {group} if you write --config-dir {folder.parent}."
    for folder in (Path("conf"), Path("."), *(each / "conf" for each in config_dirs(arguments))):
        if (folder / group / f"{choice}.yaml").is_file():
            return f"To use {folder / group / choice}.yaml, add --config-dir {folder}."
    return ""


def mistaken_defaults(arguments: Sequence[str]) -> list[Problem]:
    """The problems of the defaults lists in all files of the user's --config-dir folders."""
    files = [path for folder in config_dirs(arguments) for path in sorted(folder.rglob("*.yaml"))]
    return [problem for path in files if (problem := mistaken_defaults_of(path))]


def mistaken_defaults_of(path: Path) -> Problem | None:
    """The problem of the defaults list of a file: an item that is no choice, or a group with several choices."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    defaults = values.get("defaults", []) if isinstance(values, Mapping) else []
    if not isinstance(defaults, list):
        message = f"is {defaults!r} in {path}, must be a list with items such as '- override /model: dense'"
        return Problem("defaults", message)
    chosen: set[str] = set()
    for item in defaults:
        if not _is_choice(item):
            return Problem("defaults", f"has the item {item!r} in {path}; write it as '- override /model: dense'")
        for key, choice in item.items() if isinstance(item, Mapping) else ():
            group = str(key).split()[-1].lstrip("/").partition("@")[0]
            has_several = isinstance(choice, list) or group in chosen
            if has_several and group in ONE_CHOICE:
                return Problem("defaults", f"has several choices of {group} in {path}; keep one of them")
            chosen.add(group)
    return None


def _is_choice(item: Any) -> bool:
    """Whether an item of a defaults list is a file, or a group with a choice of it."""
    if not isinstance(item, Mapping):
        return isinstance(item, str)
    if len(item) != 1:
        return False
    (choice,) = item.values()
    return choice is None or isinstance(choice, str | list)


def _is_hydras(name: Path) -> bool:
    """Whether Hydra has a configuration file of this name."""
    its = importlib.resources.files("hydra.conf")  # not imported with this module: tasks need no Hydra
    return name == Path("hydra", "config.yaml") or its.joinpath(str(name)).is_file()


def require_own_names(arguments: Sequence[str]) -> None:
    """Checks that no file of the user's would replace the configuration as a whole, or what it is made by.

    Raises:
      ConfigError: names the user's files.
    """
    if any(argument.startswith(("--config-name", "-cn")) for argument in arguments):
        return
    folders = config_dirs(arguments)
    names = [(folder / its.name, its) for folder in folders for its in CONF.glob("*.yaml")]
    problems = [
        Problem(OPTIONS[0], f"{folder / key} has the name of the key {key}, which is no group; rename the folder")
        for folder in folders
        for key in _KEYS
        if any((folder / key).glob("*.yaml"))
    ]
    problems += [
        Problem(OPTIONS[0], f"{path} has the name of a file that psrun's own settings need; rename it")
        for folder in folders
        for path in sorted(folder.glob("hydra/**/*.yaml"))
        if _is_hydras(path.relative_to(folder))
    ]
    problems += [
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
