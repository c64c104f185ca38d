"""The recorded configuration of a resumed run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from psrun.config import parse, resolvers
from psrun.results.run_folder import CONFIG, HYDRA


def as_recorded(composed: Any, unresolved: Any, folder: Path, given: list[str]) -> dict[str, Any]:
    """The recorded configuration of the run in `folder`, overridden by the arguments `given`.

    The YAML files may have changed since, and those of a --config-dir may be missing.

    Args:
      unresolved: as `composed`, with unresolved references; a value that refers to another key follows that key.
    """
    if not (folder / CONFIG).exists():
        return composed
    recorded: Any = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
    now = {key_of(argument) for argument in given}
    if "experiment" in now:  # which may choose anything
        return composed
    now |= {"data"} if "model" in now else set()
    if recorded.get("data", {}).get("batch_size_per_replica") is not None:  # the number of replicas may be another one
        recorded["data"]["global_batch_size"] = None
    return resolvers.completed(
        {
            name: _merged(node, unresolved[name], recorded[name], name, now)
            if name in parse.RECORDED and name in recorded
            else node
            for name, node in composed.items()
        }
    )


def started_in(folder: Path) -> str | None:
    """The current folder of the process that last began the run in `folder`; None if it is not recorded."""
    try:
        recorded: Any = OmegaConf.load(folder / HYDRA[1])
        return str(recorded.hydra.runtime.cwd)
    except (OSError, AttributeError, OmegaConfBaseException):
        return None


def _merged(here: Any, refers: Any, there: Any, key: str, now: set[str]) -> Any:
    """The recorded value `there` of a key, except where it is named in `now` or refers to another key."""
    if key in now or (isinstance(refers, str) and "${" in refers):
        return here
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there) and isinstance(refers, list):
        return [_merged(*parts, f"{key}[{index}]", now) for index, parts in enumerate(zip(here, refers, there))]
    is_overridden = any(name.startswith(f"{key}.") for name in now)
    if not isinstance(here, dict) or not isinstance(there, dict):
        return here if is_overridden else there
    other = any(here.get(name) != there.get(name) for name in ("kind", "_target_"))
    merged = {}
    for name in [*here, *(name for name in there if name not in here)]:
        inner = f"{key}.{name}"
        if name in here and name in there:
            merged[name] = _merged(here[name], refers[name], there[name], inner, now)
        elif name in there and inner not in now:
            merged[name] = there[name]
        elif name in here and (not other or any(f"{each}.".startswith(f"{inner}.") for each in now)):
            merged[name] = here[name]
    return merged


def key_of(argument: str) -> str:
    """The key or group that an argument in Hydra's grammar sets."""
    return argument.partition("=")[0].lstrip("+~")


def folder_of(arguments: list[str]) -> Path | None:
    """The folder that `resume` names in the arguments; None without one."""
    value = next((a.partition("=")[2] for a in arguments if a.startswith("resume=")), "null")
    return None if value == "null" else Path(unquoted(value)).expanduser().absolute()


def unquoted(value: str) -> str:
    """The text of a value in Hydra's grammar, as `quoted` or a user writes it."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value


def quoted(folder: Path) -> str:
    """A folder as a value in Hydra's grammar."""
    escaped = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
