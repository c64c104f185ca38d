"""The content of a checkpoint as a JSON file, written last: a checkpoint without a manifest is incomplete."""

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
_OWN = "sha256"  # checksum of the manifest's other keys
_CHUNK_BYTES = 1 << 20

Variables = Mapping[str, Mapping[str, Any]]  # shape and dtype of whole variables by name


@dataclass(frozen=True)
class Position:
    """The position of a training.

    Attributes:
      epochs, steps: completed epochs, and steps of the next one.
      scheduled: steps scheduled so far, over all epochs.
      stream: the step at which the stream of training batches began; None if each worker has a separate stream.
      batch: the number of the next batch, if batches are numbered.
      batches_per_step: the number of batches that an update was computed from.
      again: the numbers of earlier batches that were not applied.
      order: the geometry of numbered batches: examples, batch size and block; None otherwise.
    """

    epochs: int = 0
    steps: int = 0
    scheduled: int = 0
    stream: int | None = None
    batch: int = 0
    order: Sequence[int] | None = None
    again: Sequence[int] = field(default_factory=list)  # as JSON has it
    batches_per_step: int = 1


@dataclass(frozen=True)
class Contents:
    """The content of all checkpoints of a program.

    Attributes:
      optimizer: the name of its class.
      model, slots: the variables of the model and of the optimizer.
      shards: the shards with their tasks and bytes.
      keys: by name, the key of each value in the checkpoint.
      adapted: by layer, the digest of the vocabulary or the bins that its `adapt` found in data.
    """

    optimizer: str
    model: Variables
    slots: Variables
    shards: list[dict[str, Any]]
    keys: Mapping[str, str]
    adapted: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, optimizer: str, placed: list[Placed], keys: Mapping[str, str], adapted: Mapping[str, str] | None = None
    ) -> Contents:
        variables: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}}
        for shard in placed:
            variables[shard.kind][shard.variable] = {"shape": list(shard.variable_shape), "dtype": shard.dtype}
        shards = [
            {"variable": each.variable, "shard": each.shard, "task": each.task, "bytes": each.bytes} for each in placed
        ]
        return cls(optimizer, variables["model"], variables["optimizer"], shards, keys, adapted or {})

    def check(self, path: str, here: Contents) -> None:
        """Raises ConfigError with the differences if `here` cannot resume from the checkpoint at `path`."""
        self.check_model(path, here)
        problem = None
        if self.optimizer != here.optimizer:
            problem = f"is {here.optimizer}, but the checkpoint {path} has {self.optimizer}"
        elif difference := differences(self.slots, here.slots):
            problem = f"differs from the optimizer of the checkpoint {path}: {difference}"
        if problem:
            raise ConfigError([Problem("optimizer", problem)])

    def check_model(self, path: str, here: Contents) -> None:
        """As `check`, without the optimizer."""
        difference = differences(self.model, here.model)
        if difference:
            raise ConfigError([Problem("model", f"differs from the model of the checkpoint {path}: {difference}")])
        others = [name for name, digest in self.adapted.items() if here.adapted.get(name, digest) != digest]
        if others:
            message = (
                f"has layers that adapt() gave other words or bins than for the checkpoint {path}: {', '.join(others)}"
            )
            raise ConfigError([Problem("model", f"{message}; adapt them to the same data, or give a vocabulary")])


@dataclass(frozen=True)
class Manifest:
    """One checkpoint.

    Attributes:
      step: the optimizer's.
      config_sha256: of the configuration of the run.
      saved_at: completion time, UTC, ISO 8601.
      files: size and checksum of each file, by name.
      learning_rate: as configured, if that was a number.
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
    """The path of the manifest of a checkpoint."""
    return Path(f"{checkpoint}.manifest.json")


def write(checkpoint: str, manifest: Manifest) -> None:
    """Writes the manifest atomically. Raises OSError."""
    plain = asdict(manifest)
    files.write_atomic(path(checkpoint), json.dumps({**plain, _OWN: digest(plain)}, indent=1) + "\n", durable=True)


def read(checkpoint: str) -> Manifest:
    """Raises OSError if the file cannot be read, ValueError if its content is damaged."""
    try:
        plain = json.loads(path(checkpoint).read_text(encoding="utf-8"))
        if plain.pop(_OWN) != digest(plain):
            raise ValueError("manifest checksum mismatch")
        plain["position"].pop("audit", None)  # how often examples were applied, which earlier versions counted
        return Manifest(
            **{**plain, "position": Position(**plain["position"]), "contents": Contents(**plain["contents"])}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def digest(plain: Any) -> str:
    """SHA-256 of plain values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(file: Path) -> str:
    """SHA-256 of a file, read in pieces. Raises OSError."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def differences(there: Variables, here: Variables) -> str:
    """A description of the differences between variables; empty if there are none."""
    changes = [f"no {name} here" for name in there if name not in here]
    changes += [f"no {name} there" for name in here if name not in there]
    changes += [
        f"{name} is {described(here[name])} here and {described(variable)} there"
        for name, variable in there.items()
        if name in here and described(here[name]) != described(variable)
    ]
    more = f", and {len(changes) - _MOST} more" if len(changes) > _MOST else ""
    return ", ".join(changes[:_MOST]) + more


def described(variable: Mapping[str, Any]) -> str:
    """'8x20 float32'."""
    return ("x".join(map(str, variable["shape"])) or "scalar") + f" {variable['dtype']}"
