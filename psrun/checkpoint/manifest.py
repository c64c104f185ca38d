"""What a checkpoint holds, as a JSON file beside it, written last: without one a checkpoint was never complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from psrun import __version__, files
from psrun.cluster.placement import Placed
from psrun.errors import ConfigError, Problem

_MOST = 8
_OWN = "sha256"  # of the manifest's other keys
_CHUNK_BYTES = 1 << 20

Variables = Mapping[str, Mapping[str, Any]]  # shape and dtype of whole variables, whatever their shards, by name


@dataclass(frozen=True)
class Position:
    """How far a training is.

    Attributes:
      epochs, steps: whole epochs, and steps into the one after them.
      scheduled: steps that were scheduled so far, over all epochs, however long they were.
      stream: the step at which the stream of training batches began that the training reads from; None where there
        is no one stream, as each worker has its own.
      batch: the number of the next batch, where batches are numbered.
      order: by what they are: examples, batch size and block; None where they are not.
    """

    epochs: int = 0
    steps: int = 0
    scheduled: int = 0
    stream: int | None = None
    batch: int = 0
    order: Sequence[int] | None = None


@dataclass(frozen=True)
class Contents:
    """What all checkpoints of a program hold.

    Attributes:
      optimizer: the name of its class.
      model, slots: the variables of the model and of the optimizer.
      shards: which of them lies on which task, and bytes.
    """

    optimizer: str
    model: Variables
    slots: Variables
    shards: list[dict[str, Any]]

    @classmethod
    def of(cls, optimizer: str, placed: list[Placed]) -> Contents:
        found: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}}
        for shard in placed:
            found[shard.kind][shard.variable] = {"shape": list(shard.variable_shape), "dtype": shard.dtype}
        shards = [
            {"variable": each.variable, "shard": each.shard, "task": each.task, "bytes": each.bytes} for each in placed
        ]
        return cls(optimizer, found["model"], found["optimizer"], shards)

    def check(self, path: str, here: Contents) -> None:
        """Raises ConfigError with the differences if `here` cannot resume from the checkpoint at `path`."""
        self.check_model(path, here)
        problem = None
        if self.optimizer != here.optimizer:
            problem = f"is {here.optimizer}, but the checkpoint {path} has {self.optimizer}"
        elif found := differences(self.slots, here.slots):
            problem = f"differs from the optimizer of the checkpoint {path}: {found}"
        if problem:
            raise ConfigError([Problem("optimizer", problem)])

    def check_model(self, path: str, here: Contents) -> None:
        """As `check`, whatever the optimizer."""
        found = differences(self.model, here.model)
        if found:
            raise ConfigError([Problem("model", f"differs from the model of the checkpoint {path}: {found}")])


@dataclass(frozen=True)
class Manifest:
    """One checkpoint.

    Attributes:
      step: the optimizer's.
      config_sha256: of the configuration that the run had.
      saved_at: when it was complete, UTC, as in ISO 8601.
      files: size and checksum of each file, by name.
      learning_rate: as the configuration had it, where that was a number.
      psrun: the version that wrote it.
    """

    step: int
    position: Position
    contents: Contents
    config_sha256: str
    saved_at: str
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    psrun: str = __version__
    learning_rate: float | None = None

    @property
    def num_bytes(self) -> int:
        return sum(file["bytes"] for file in self.files.values())


def path(checkpoint: str) -> Path:
    """Where the manifest of a checkpoint is."""
    return Path(f"{checkpoint}.manifest.json")


def write(checkpoint: str, manifest: Manifest) -> None:
    """Writes it to disk, whole. Raises OSError where it cannot be written."""
    plain = asdict(manifest)
    files.write_atomic(path(checkpoint), json.dumps({**plain, _OWN: digest(plain)}, indent=1) + "\n", durable=True)


def read(checkpoint: str) -> Manifest:
    """Raises OSError where it cannot be read, ValueError where it is not what was written."""
    try:
        plain = json.loads(path(checkpoint).read_text(encoding="utf-8"))
        if plain.pop(_OWN) != digest(plain):
            raise ValueError("manifest checksum mismatch")
        return Manifest(
            **{**plain, "position": Position(**plain["position"]), "contents": Contents(**plain["contents"])}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def digest(plain: Any) -> str:
    """SHA-256 of plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(file: Path) -> str:
    """SHA-256 of a file, read in pieces. Raises OSError."""
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_CHUNK_BYTES):
            found.update(piece)
    return found.hexdigest()


def differences(there: Variables, here: Variables) -> str:
    """What keeps variables from being the same, for a person; empty where nothing does."""
    found = [f"no {name} here" for name in there if name not in here]
    found += [f"no {name} there" for name in here if name not in there]
    found += [
        f"{name} is {described(here[name])} here and {described(variable)} there"
        for name, variable in there.items()
        if name in here and described(here[name]) != described(variable)
    ]
    more = f", and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join(found[:_MOST]) + more


def described(variable: Mapping[str, Any]) -> str:
    """'8x20 float32'."""
    return ("x".join(map(str, variable["shape"])) or "scalar") + f" {variable['dtype']}"
