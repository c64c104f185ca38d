"""The configuration of `resume=RUN`: the recorded one, with the groups and keys that the command names now."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from psrun.config import groups, overrides
from psrun.config.arguments import ASKS, key_of, quoted, unquoted
from psrun.config.choices import KINDS
from psrun.config.compose import Composer, without_hydra
from psrun.config.parse import RECORDED
from psrun.errors import ConfigError, Problem
from psrun.results import found, recorded_config, run_state
from psrun.results.run_folder import CONFIG, HYDRA, RESULT, rebuilt


def compose(arguments: Sequence[str], folder: Path, *, into: Path | None = None) -> DictConfig:
    """The configuration of the run in `folder` as it goes on, with Hydra's node `hydra`.

    Args:
      into: the folder of a new run with this configuration; None to resume the run.

    Raises:
      ConfigError: the folder holds no run, or the arguments are wrong; lists all problems.
    """
    recorded = _recorded_overrides(folder, arguments)
    choices = _recorded_choices(folder)
    arguments = [each for each in arguments if not _names_what_is_gone(each, choices, arguments)]
    now = [each for each in arguments if not each.startswith("resume=")]
    now += [f"hydra.run.dir={quoted(into or folder)}"]
    if into is None:
        now.append(f"resume={quoted(folder)}")
    if any(each.startswith("mode=") and each != "mode=train" for each in arguments):
        now.append("hydra.output_subdir=null")  # leaves the recorded configuration unchanged
    run = _Recorded(folder, arguments, recorded, choices)
    return Composer(arguments).compose([*now, *run.explicit], implied=run.implied, prepare=run.lay_over)


def with_folder(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the folder of the run or sweep that `resume` names by its name or by the end of its folder's.

    Raises:
      ConfigError: several have it.
    """
    return [_by_folder(argument) for argument in arguments]


def _by_folder(argument: str) -> str:
    key, _, value = argument.partition("=")
    if key != "resume" or value in ("", "null", ASKS):
        return argument
    try:
        folder = found.named(unquoted(value))
        run_state.require_readable(folder or Path(unquoted(value)))
    except ConfigError as error:
        raise ConfigError([Problem("resume", problem.message) for problem in error.problems]) from error
    return argument if folder is None else f"resume={quoted(folder.absolute())}"


def _recorded_overrides(folder: Path, arguments: Sequence[str]) -> list[str]:
    if any(each.startswith("hydra.run.dir=") for each in arguments):
        raise ConfigError([Problem("resume", "a resumed run keeps its folder; remove hydra.run.dir")])
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        recorded: list[str] = result["overrides"]
    except (OSError, ValueError, KeyError) as error:
        result = rebuilt(folder)
        if not result:
            raise ConfigError([Problem("resume", _no_run(folder, error))]) from error
        recorded = result["overrides"]
    return recorded


def _no_run(folder: Path, error: Exception) -> str:
    if os.path.exists(folder / run_state.SWEEP):
        return f"{folder} holds a sweep; use psrun -m resume=..."
    if not os.path.isdir(folder):
        return f"there is no run in {folder}: no such folder (current folder: {Path.cwd()})"
    if isinstance(error, FileNotFoundError):
        return f"there is no run in {folder}: no run.json; name the folder of a run, such as runs/RUN"
    return f"the run in {folder} cannot be resumed: run.json cannot be read ({error})"


class _Recorded:
    """What a run recorded, beside what the command names now.

    Choices of a person's own groups lie under --config-dir, which need not be given again, and may be gone: what such a
    choice held is in the run folder.

    Args:
      folder: the run folder.
      arguments: those of this command.
      before: the arguments of the run so far.
      choices: of the run so far, by group.

    Attributes:
      explicit: choices among these that still hold and whose files are here.
      implied: the other choices that still hold and whose files are here, such as defaults.
    """

    def __init__(
        self, folder: Path, arguments: Sequence[str], before: Sequence[str], choices: Mapping[str, Any]
    ) -> None:
        self._folder = folder
        self._now = {key_of(each) for each in arguments}
        self._replaced = {name for name in self._now if name in groups.ONE_CHOICE}
        self._replaced |= {"data"} if "model" in self._now else set()  # a model selects data
        composed = folder / HYDRA[0]
        self._choices = choices
        self._written: Any = {}
        if composed.exists():
            self._written = recorded_config.read(composed)
        known = {**groups.choices(arguments), **self._choices}
        held = overrides.parsed([each for each in before if key_of(each) not in self._now])
        chosen = [each for each in held if overrides.is_of_a_group(each, known)]
        self._keys = [each for each in held if each not in chosen]
        there = {each.key_or_group: str(each.input_line) for each in chosen if _is_there(each, arguments)}
        self.explicit = [*there.values()]
        others = {group.partition("@")[0]: choice for group, choice in self._choices.items() if choice is not None}
        others = {group: choice for group, choice in others.items() if group in groups.ONE_CHOICE - self._replaced}
        files = {group: groups.choices_of(group, arguments) for group in others}
        self.implied = [
            f"{group}=[{','.join(choice)}]" if isinstance(choice, list) else f"{group}={choice}"
            for group, choice in others.items()
            if group not in there
            and group != "experiment"
            and "experiment" not in self._now
            and files[group].keys() >= {*_names(choice)}
        ]
        self._gone = [str(each.input_line) for each in chosen if each.key_or_group not in there]
        self._is_incomplete = bool(self._gone) or any(
            not files[group].keys() >= {*_names(choice)} for group, choice in others.items()
        )

    def lay_over(self, config: DictConfig) -> list[str]:
        """Puts the recorded configuration into a composed one; returns the arguments of the run that still apply."""
        kept = self._gone
        for override in self._keys:
            problem = overrides.set_key(config, override)
            group = override.key_or_group.partition(".")[0]
            if problem is None or not ({group, "experiment"} & (self._replaced | self._now)):
                kept.append(str(override.input_line))
        nodes: Any = OmegaConf.to_container(without_hydra(config), resolve=False)
        if self._is_incomplete and "experiment" not in self._now:
            recorded = {*RECORDED} - self._replaced
            nodes |= {name: node for name, node in self._written.items() if name in recorded}
        held = recorded_config.merged(nodes, nodes, self._folder, self._now)
        with open_dict(config):
            config.update({name: held[name] for name in RECORDED if name in held})
            if "experiment" not in self._now:
                choices = {group: choice for group, choice in self._choices.items() if not group.startswith("hydra/")}
                replaced = [group for group in choices if group.partition("@")[0] in self._replaced]
                config.hydra.runtime.choices.update({k: v for k, v in choices.items() if k not in replaced})
        return kept


def _recorded_choices(folder: Path) -> dict[str, Any]:
    """The choices of the run in `folder`, by group or GROUP@PLACE."""
    hydra = folder / HYDRA[1]
    choices: dict[str, Any] = (
        recorded_config.read(hydra)["hydra"]["runtime"]["choices"] if hydra.exists() else _kinds(folder / CONFIG)
    )
    return choices


def _names_what_is_gone(argument: str, choices: Mapping[str, Any], arguments: Sequence[str]) -> bool:
    """Whether an argument repeats a recorded choice whose file is not here: what it held is recorded."""
    group, value = key_of(argument), argument.partition("=")[2]
    is_recorded = any(name.partition("@")[0] == group and choice == value for name, choice in choices.items())
    return is_recorded and value not in groups.choices_of(group, arguments)


def _kinds(config: Path) -> dict[str, Any]:
    """The choices of a run without files of Hydra, as with hydra.output_subdir=null: they have the names of kinds."""
    nodes = recorded_config.read(config) if config.exists() else {}
    several = {name: [*nodes[name]] for name in groups.SEVERAL_CHOICES if name in nodes}
    return several | {name: nodes[name]["kind"] for name in KINDS if "kind" in nodes.get(name, ())}


def _names(choice: Any) -> list[str]:
    """The names of the choices of a group, of which a run may have several."""
    return [str(each) for each in choice] if isinstance(choice, list) else [str(choice)]


def _is_there(override: Override, arguments: Sequence[str]) -> bool:
    """Whether the files of the choices of an override exist; also of one without a choice."""
    value: Any = override.value()
    options = groups.choices_of(override.key_or_group, arguments)
    return override.is_delete() or all(each in options for each in (value if isinstance(value, list) else [value]))
