"""What a checkpoint holds, as a small JSON file beside it: enough to refuse what it does not fit, and to say why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from psrun import __version__, atomic
from psrun.errors import ConfigError, Problem
from psrun.placement import Placed

_MOST = 8

Shapes = Mapping[str, list[int]]  # of whole variables, whatever their shards, by name


@dataclass(frozen=True)
class Manifest:
    """What a program's checkpoints hold.

    Attributes:
      optimizer: the name of its class.
      model, slots: the variables of the model and of the optimizer.
      shards: which of them lies on which task, and bytes.
      psrun: the version that wrote it.
    """

    optimizer: str
    model: Shapes
    slots: Shapes
    shards: list[dict[str, object]]
    psrun: str = __version__

    @classmethod
    def of(cls, optimizer: str, placed: list[Placed]) -> Manifest:
        shapes: dict[str, dict[str, list[int]]] = {"model": {}, "optimizer": {}}
        for shard in placed:
            shapes[shard.kind][shard.variable] = list(shard.variable_shape)
        shards = [
            {"variable": each.variable, "shard": each.shard, "task": each.task, "bytes": each.bytes} for each in placed
        ]
        return cls(optimizer, shapes["model"], shapes["optimizer"], shards)

    def check(self, path: str, here: Manifest) -> None:
        """Raises ConfigError, with what differs, where `here` cannot go on from the checkpoint at `path`."""
        problems = []
        found = _differences(self.model, here.model)
        if found:
            problems.append(Problem("model", f"is not the one in {path}: {found}"))
        elif self.optimizer != here.optimizer:
            problems.append(Problem("optimizer", f"is {here.optimizer}; the one in {path} is {self.optimizer}"))
        elif found := _differences(self.slots, here.slots):
            problems.append(Problem("optimizer", f"is not the one in {path}: {found}"))
        if problems:
            raise ConfigError(problems)


def _differences(there: Shapes, here: Shapes) -> str:
    found = [f"no {name} here" for name in there if name not in here]
    found += [f"no {name} there" for name in here if name not in there]
    found += [
        f"{name} is {_shape(here[name])} here and {_shape(shape)} there"
        for name, shape in there.items()
        if name in here and list(here[name]) != list(shape)
    ]
    more = f", and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join(found[:_MOST]) + more


def _shape(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def path(checkpoint: str) -> Path:
    """Where the manifest of a checkpoint is."""
    return Path(f"{checkpoint}.manifest.json")


def write(checkpoint: str, manifest: Manifest) -> None:
    """Raises OSError where it cannot be written."""
    atomic.write(path(checkpoint), json.dumps(asdict(manifest), indent=2) + "\n")


def read(checkpoint: str) -> Manifest | None:
    """The manifest of a checkpoint; None where there is none, or none that can be read."""
    try:
        return Manifest(**json.loads(path(checkpoint).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
