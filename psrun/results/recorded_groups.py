"""The choices of groups that a run recorded, offered to Hydra if their files are missing.

A run that is resumed is composed again. Choices of a person's own groups lie under --config-dir, which need not be
given again, and may be gone: what such a choice held is in the run folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from psrun.config.parse import RECORDED
from psrun.results.recorded_config import key_of
from psrun.results.run_folder import CONFIG, HYDRA


class RecordedChoices:
    """The configuration that Hydra recorded in the folder of a run.

    Args:
      folder: the run folder.
      overrides: those that the run was started with.
      named: the keys and groups that the recorded or the current arguments name.
    """

    def __init__(self, folder: Path, overrides: list[str], named: set[str]) -> None:
        composed, hydra = (folder / name for name in HYDRA[:2])
        self._named = named
        self._choices = {key_of(each): each.partition("=")[2] for each in overrides}
        self._groups: list[str] = []  # in the order of the defaults list
        if hydra.exists():  # not where hydra.output_subdir=null was given
            by_group: Any = OmegaConf.to_container(OmegaConf.load(hydra).hydra.runtime.choices)
            self._choices = {group: str(choice) for group, choice in by_group.items() if not group.startswith("hydra/")}
            self._groups = [*reversed(self._choices)]
        self._composed: Any = OmegaConf.create()
        for path in (composed, folder / CONFIG):  # the first one with references as they stand
            if path.exists():
                self._composed = OmegaConf.load(path)
                break
        for each in overrides:  # which are applied once more
            if each.startswith("+") and not each.startswith("++"):
                _delete(self._composed, key_of(each))
            elif each.startswith("~"):
                OmegaConf.update(self._composed, key_of(each), _deleted_value(each), force_add=True)
        self._offered = set[tuple[str, str]]()

    def taken_for_a_value(self, composed: dict[str, Any]) -> tuple[str, str] | None:
        """A recorded choice that Hydra, without such a group, took for the value of a key; None without one."""
        return next((each for each in self._choices.items() if composed.get(each[0]) == each[1]), None)

    def offer(self, group: str, choice: str) -> bool:
        """Lets Hydra find a choice. False if the run recorded no such choice, or Hydra was offered it before."""
        key = next((k for k, v in self._choices.items() if k.partition("@")[0] == group and v == choice), None)
        if key is None or (group, choice) in self._offered:
            return False
        self._offered.add((group, choice))
        selected = OmegaConf.select(self._composed, _package(key))
        node, package = (selected, None) if isinstance(selected, DictConfig) else (self._everything(), "_global_")
        values: Any = OmegaConf.to_container(node, resolve=False)
        values["defaults"] = [*self._chosen_before(key), "_self_"]
        ConfigStore.instance().store(group=group, name=choice, node=values, package=package)
        return True

    def _everything(self) -> DictConfig:
        """All keys that an experiment may have set."""
        names = [name for name in RECORDED if name in self._composed and name not in self._named]
        return OmegaConf.masked_copy(self._composed, names)

    def _chosen_before(self, key: str) -> list[dict[str, str]]:
        """The choices before this one in the defaults list, which it may have overridden."""
        groups = self._groups[: self._groups.index(key)] if key in self._groups else []
        packages = {group: _package(group) for group in groups if _package(group) in self._composed}
        return [
            {f"override /{group.partition('@')[0]}@_global_.{at}": self._choices[group]}
            for group, at in packages.items()
        ]


def _package(key: str) -> str:
    """The package of a choice in the configuration, by the key of its group: `group` or `group@package`."""
    group, _, package = key.partition("@")
    return package.removeprefix("_global_.") or group.replace("/", ".")


def _deleted_value(argument: str) -> Any:
    """A value for the key that `~KEY` or `~KEY=VALUE` deletes. Hydra deletes no key that is null."""
    _, equals, value = argument.partition("=")
    return yaml.safe_load(value) if equals else True


def _delete(composed: Any, key: str) -> None:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(composed, parent) if parent else composed
    if isinstance(node, DictConfig) and name in node:
        del node[name]
