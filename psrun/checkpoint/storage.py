"""Checkpoints on disk: the manifest of each, and their folder. Does not import TensorFlow.

The folder verifies, selects and removes checkpoints. A checkpoint `ckpt-N` consists of TensorFlow's
files (`ckpt-N.index`, `ckpt-N.data-...`) and of `ckpt-N.manifest.json`, written last, with their
sizes and checksums. Without a manifest it is incomplete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from psrun import __version__, files
from psrun.cluster.placement import Placed
from psrun.errors import CheckpointError, ConfigError, Problem

_MOST_CHANGES = 8
_CHECKSUM = "sha256"  # checksum of the manifest's other keys
_CHUNK_BYTES = 1 << 20

Variables = Mapping[str, Mapping[str, Any]]  # shape and dtype of whole variables by name
PREFIX = "ckpt"
STATE = "checkpoint"
SET_ASIDE = "set-aside"
_BEST = "best.json"
_FILE = re.compile(rf"{PREFIX}-(?P<step>\d+)(?P<rest>[._].*)")
_DATA = re.compile(r"\.data-(?P<index>\d+)-of-(?P<count>\d+)")
_MANIFEST_SUFFIX = ".manifest.json"
EXPORT_FORMATS = ("safetensors", "npz", "parquet")
LATEST = "latest"
BEST_ONE = "best"
_ALONE_WITHIN_S = 5.0
_LOOK_EVERY_S = 0.02
_EMPTY_LOOKS = 15
_WRITES_END_WITHIN_S = 5.0


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
      partly: some of these numbers: the rows of tables are updated, and the dense weights are not.
      order: the geometry of numbered batches: examples, batch size and block; None otherwise.
      virtual_s: virtual seconds of the training, if a process plays its workers.
    """

    epochs: int = 0
    steps: int = 0
    scheduled: int = 0
    stream: int | None = None
    batch: int = 0
    order: Sequence[int] | None = None
    again: Sequence[int] = field(default_factory=list)  # as JSON has it
    partly: Sequence[int] = field(default_factory=list)
    batches_per_step: int = 1
    virtual_s: float = 0.0


@dataclass(frozen=True)
class Contents:
    """The content of all checkpoints of a program.

    Attributes:
      optimizer: the name of its class; of two, the one of dense weights.
      table_optimizer: the class of the optimizer of tables; empty where `optimizer` updates them.
      updated_tables: the names of the tables that it updates.
      model, slots: the variables of the model and of the optimizer.
      shards: the shards with their tasks and bytes.
      keys: by name, the key of each value in the checkpoint.
      adapted: by layer, the digest of the vocabulary or the bins that its `adapt` found in data.
      hashed_integers: by feature of integers that are hashed to ids, the hash function.
      constants: by 'optimizer' and 'table_optimizer', the numbers of its configuration by name.
      modules: by 'optimizer' and 'table_optimizer', the module of its class.
      tables: by embedding table, which ids its rows belong to: see `psrun.program.embeddings.described`; None if an
        earlier version wrote the checkpoint.
    """

    optimizer: str
    model: Variables
    slots: Variables
    shards: list[dict[str, Any]]
    keys: Mapping[str, str]
    adapted: Mapping[str, str] = field(default_factory=dict)
    hashed_integers: Mapping[str, str] = field(default_factory=dict)
    table_optimizer: str = ""
    updated_tables: Sequence[str] = field(default_factory=list)
    constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Any]] | None = None

    @classmethod
    def of(cls, optimizer: str, placed: list[Placed], keys: Mapping[str, str], **others: Any) -> Contents:
        """The content of checkpoints with these variables.

        Args:
          others: by the names of attributes.
        """
        variables: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}}
        for shard in placed:
            variables[shard.kind][shard.variable] = {"shape": list(shard.variable_shape), "dtype": shard.dtype}
        shards = [
            {"variable": each.variable, "shard": each.shard, "task": each.task, "bytes": each.bytes} for each in placed
        ]
        return cls(optimizer, variables["model"], variables["optimizer"], shards, keys, **others)

    def check(self, path: str, here: Contents) -> None:
        """Raises ConfigError with the differences if `here` cannot resume from the checkpoint at `path`."""
        self.check_model(path, here)
        anew = self.slots_anew(here)
        problem = None
        if self.optimizer != here.optimizer:
            problem = f"is {here.optimizer}, but the checkpoint {path} has {self.optimizer}"
        elif difference := differences(_without(self.slots, anew), _without(here.slots, anew)):
            problem = f"differs from the optimizer of the checkpoint {path}: {difference}"
        if problem:
            raise ConfigError([Problem("optimizer", problem)])

    def slots_anew(self, here: Contents) -> set[str]:
        """The slots of tables, there and here, if another optimizer updates the tables here: they start anew."""
        if (self.table_optimizer or self.optimizer) == (here.table_optimizer or here.optimizer):
            return set()
        ends = tuple(f"/{table}" for table in {*self.updated_tables, *here.updated_tables})
        return {name for name in (*self.slots, *here.slots) if name.endswith(ends)}

    @property
    def optimizers(self) -> str:
        """The classes as text."""
        return f"{self.optimizer}, {self.table_optimizer} for tables" if self.table_optimizer else self.optimizer

    def check_model(self, path: str, here: Contents) -> None:
        """As `check`, without the optimizer."""
        difference = differences(self.model, here.model)
        if difference:
            raise ConfigError([Problem("model", f"differs from the model of the checkpoint {path}: {difference}")])
        others = [name for name, digest in self.adapted.items() if here.adapted.get(name, digest) != digest]
        if others:
            message = (
                f"has layers with other words or bins from adapt() than in the checkpoint {path}: {', '.join(others)}"
            )
            raise ConfigError([Problem("model", f"{message}; adapt them to the same data, or give a vocabulary")])
        self._check_hashes(path, here)

    def _check_hashes(self, path: str, here: Contents) -> None:
        others = []
        for name, function in here.hashed_integers.items():
            if self.hashed_integers.get(name) != function:
                others.append(name)
        if others:
            message = (
                f"has other ids for integers than the checkpoint {path}: {', '.join(others)}; an earlier version of "
                "psrun, which hashed integers as text, wrote it: start a new run"
            )
            raise ConfigError([Problem("model", message)])


@dataclass(frozen=True)
class Manifest:
    """One checkpoint.

    Attributes:
      step: the optimizer's.
      config_sha256: of the configuration of the run.
      saved_at: completion time, UTC, ISO 8601.
      files: size and checksum of each file, by name.
      learning_rate: as configured, if that was a number.
      table_learning_rate: as `learning_rate`, of the optimizer of tables.
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
    table_learning_rate: float | None = None

    @property
    def num_bytes(self) -> int:
        return sum(file["bytes"] for file in self.files.values())


def manifest_path(checkpoint: str) -> Path:
    """The path of the manifest of a checkpoint."""
    return Path(f"{checkpoint}{_MANIFEST_SUFFIX}")


def write_manifest(checkpoint: str, manifest: Manifest) -> None:
    """Writes the manifest atomically. Raises OSError."""
    plain = asdict(manifest)
    plain[_CHECKSUM] = digest(plain)
    files.write_atomic(manifest_path(checkpoint), json.dumps(plain, indent=1) + "\n", durable=True)


def read_manifest(checkpoint: str) -> Manifest:
    """Raises OSError if the file cannot be read, ValueError if its content is damaged."""
    try:
        plain = json.loads(manifest_path(checkpoint).read_text(encoding="utf-8"))
        if plain.pop(_CHECKSUM) != digest(plain):
            raise ValueError("manifest checksum mismatch")
        plain["position"].pop("audit", None)  # how often examples were applied, which earlier versions counted
        plain["position"] = Position(**plain["position"])
        plain["contents"] = Contents(**plain["contents"])
        return Manifest(**plain)
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
    more = f", and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    return ", ".join(changes[:_MOST_CHANGES]) + more


def _without(variables: Variables, names: Collection[str]) -> Variables:
    return {name: variable for name, variable in variables.items() if name not in names}


def described(variable: Mapping[str, Any]) -> str:
    """'8x20 float32'."""
    return ("x".join(map(str, variable["shape"])) or "scalar") + f" {variable['dtype']}"


class Store:
    """The checkpoints in `folder`, which need not exist yet. Only one process at a time may write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._passed_over: set[int] = set()

    @property
    def vocabularies(self) -> Path:
        """The folder with a file for each vocabulary that `Contents.tables` names."""
        return self.folder / "vocabularies"

    def prefix(self, step: int) -> str:
        """TensorFlow's path of the checkpoint of `step`."""
        return str(self.folder / f"{PREFIX}-{step}")

    def steps(self) -> list[int]:
        """The steps of all checkpoints with a manifest, the newest first."""
        return sorted((step for step, file, rest in self._files() if rest == _MANIFEST_SUFFIX), reverse=True)

    def damage(self, step: int, *, thorough: bool = True) -> str | None:
        """The damage of the checkpoint of `step`; None if it is good.

        Args:
          thorough: whether to read all of it, in pieces, or only the sizes of its files.

        Raises:
          CheckpointError: the checkpoint cannot be read now.
        """
        try:
            complete = self.manifest(step)
            for name, recorded in complete.files.items():
                file = self.folder / name
                size = file.stat().st_size
                if size != recorded["bytes"]:
                    return f"{name} has {size:,} bytes, not {recorded['bytes']:,}"
                if thorough and file_digest(file) != recorded["sha256"]:
                    return f"{name} has a checksum mismatch"
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except OSError as error:  # perhaps temporarily: not a reason to skip or set aside a checkpoint
            raise CheckpointError(f"{self.prefix(step)} cannot be read: {error}") from error
        except ValueError as error:
            return f"its manifest is damaged ({error})"
        return None

    def manifest(self, step: int) -> Manifest:
        """Raises OSError or ValueError if the manifest cannot be read."""
        return read_manifest(self.prefix(step))

    def choose(self, which: str, warn: Callable[[str], None]) -> Manifest | None:
        """The newest good checkpoint, completely verified; None if there has never been one.

        Args:
          which: 'latest' (skips damaged ones with a warning), 'best', or a step.

        Raises:
          CheckpointError: all checkpoints, or the named one, are damaged.
          ConfigError: the checkpoint does not exist.
        """
        if which != LATEST:
            return self._named(which)
        for step in self._newest_first():
            damage = self.damage(step)
            if damage is None:
                return self.manifest(step)
            if step in self.steps():  # a running run may have removed it
                self._passed_over.add(step)
                warn(f"{self.prefix(step)} is damaged ({damage}); trying the previous one")
        if self.steps() or (self.folder / STATE).exists():
            raise CheckpointError(
                f"all checkpoints in {self.folder} are damaged; to start a new run, choose another folder"
            )
        return None

    def _newest_first(self) -> Iterator[int]:
        """The steps of all checkpoints, including new ones of a running run."""
        tried: set[int] = set()
        while remaining := [step for step in self.steps() if step not in tried]:
            tried.add(remaining[0])
            yield remaining[0]

    def _named(self, which: str) -> Manifest:
        steps = self.steps()
        best = self.best()
        step = best["step"] if best and which == BEST_ONE else which
        if str(step) not in map(str, steps):
            there = ", ".join(map(str, steps)) or "none"
            message = f"there is no checkpoint '{which}' in {self.folder} (there: {there})"
            if which == BEST_ONE and not (self.folder / _BEST).exists():
                keys = "checkpoint.best_metric=... and checkpoint.best_mode=max or min"
                message = f"{message}: the run compared none; to keep the best, train with {keys}"
            raise ConfigError([Problem("restore", message)])
        damage = self.damage(int(step))
        if damage:
            raise CheckpointError(f"{self.prefix(int(step))} is damaged: {damage}")
        return self.manifest(int(step))

    def make_room(self, step: int) -> None:
        """Removes the remains of interrupted saves, and a checkpoint of the same step. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest_path(self.prefix(step)).unlink(missing_ok=True)  # now it is incomplete, too
        for file in self._incomplete():
            _delete(file)

    def discard(self, step: int) -> None:
        """Removes the remains of a failed save of `step`, also files that servers still write: waits a bounded time.

        TensorFlow's save returns when the first server fails, without waiting for the others (TensorFlow 2.21).
        """
        with contextlib.suppress(OSError):
            manifest_path(self.prefix(step)).unlink(missing_ok=True)
        empty_looks = 0
        deadline_s = time.monotonic() + _WRITES_END_WITHIN_S
        while empty_looks < _EMPTY_LOOKS and time.monotonic() < deadline_s:
            remains = self._incomplete()
            empty_looks = 0 if remains else empty_looks + 1
            for file in remains:
                with contextlib.suppress(OSError):  # a server put a new file into the folder that is being removed
                    _delete(file)
            time.sleep(_LOOK_EVERY_S)

    def write_vocabularies(self, vocabularies: Mapping[str, Iterable[Any]]) -> None:
        """Writes the values of each file of `vocabularies`, in JSON, one a line. Raises OSError.

        In ASCII: programs break lines also at other characters than a line feed.
        """
        for name, values in vocabularies.items():
            self.vocabularies.mkdir(parents=True, exist_ok=True)
            with files.put_whole(self.vocabularies / name) as part, part.open("w", encoding="ascii") as file:
                file.writelines(f"{json.dumps(value)}\n" for value in values)

    def complete(self, held: Manifest) -> Manifest:
        """Completes a checkpoint after TensorFlow has written its files: syncs them to disk and writes the manifest.

        Raises:
          OSError: a file cannot be written, or is missing.
        """
        written = {}
        for step, file, suffix in self._files():
            if step == held.step and suffix != _MANIFEST_SUFFIX:
                written[suffix] = file
        if not _is_complete(written):
            there = ", ".join(sorted(file.name for file in written.values())) or "no file"
            raise FileNotFoundError(
                f"{self.folder} holds only {there} of {PREFIX}-{held.step}; mount the same run folder in all tasks"
            )
        listed = {}
        in_order = sorted(written.values())
        with ThreadPoolExecutor(1) as pool:  # computes while the disk writes
            for file, sha256 in zip(in_order, pool.map(file_digest, in_order)):
                files.sync(file)
                listed[file.name] = {"bytes": file.stat().st_size, "sha256": sha256}
        files.sync(self.folder)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        whole = replace(held, files=listed, saved_at=now)
        write_manifest(self.prefix(held.step), whole)
        return whole

    def prune(self, newest: int, max_to_keep: int) -> list[int]:
        """Removes all checkpoints but the last `max_to_keep` up to `newest`, and the best one.

        Returns:
          The steps kept, the newest first. Raises OSError.
        """
        others = [step for step in self.steps() if step != newest]
        kept_steps = [newest, *others[: max_to_keep - 1]]
        for step in others[max_to_keep - 1 :]:
            with self._alone():  # an evaluator may change the best one concurrently
                if step == (self.best() or {}).get("step"):
                    kept_steps.append(step)
                else:
                    self._remove(step)
        return kept_steps

    def set_aside(self) -> list[int]:
        """Moves the checkpoints that `choose` skipped to a subfolder. Raises OSError."""
        steps = sorted(self._passed_over)
        self._passed_over = set()
        for step, file, _ in self._files():
            if step in steps:
                (self.folder / SET_ASIDE).mkdir(exist_ok=True)
                file.replace(self.folder / SET_ASIDE / file.name)
        return steps

    def best(self) -> dict | None:
        """The best checkpoint: `step`, `metric`, `mode` and `value`; None if none was compared or it was removed."""
        try:
            record = json.loads((self.folder / _BEST).read_text(encoding="utf-8"))
            best = {name: record[name] for name in ("step", "metric", "mode", "value")}
            # It may be a new checkpoint of the same step, after the compared one was damaged and set aside.
            return best if self.manifest(record["step"]).files == record["files"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def compare(self, step: int, metric: str, value: float, *, mode: str) -> bool:
        """Whether the checkpoint of `step` is the best so far by `metric`; if so, records it.

        Args:
          mode: 'max' if more is better, else 'min'.

        Raises:
          OSError, ValueError: the checkpoint does not exist, or the folder cannot be written to.
        """
        with self._alone():
            before = self.best()
            contest = before is not None and (before["metric"], before["mode"]) == (metric, mode)
            better = is_better(value, before["value"] if before and contest else None, mode)
            if better:
                listed = self.manifest(step).files
                record = {"step": step, "metric": metric, "mode": mode, "value": value, "files": listed}
                files.write_atomic(self.folder / _BEST, json.dumps(record) + "\n", durable=True)
        return better

    def _alone(self) -> AbstractContextManager[bool]:
        """Locks the record of the best checkpoint and removals; waits a bounded time for the lock."""
        return files.alone(self.folder / ".lock", within_s=_ALONE_WITHIN_S)

    def _files(self) -> Iterator[tuple[int, Path, str]]:
        """Step, path and suffix of every file of checkpoints, complete or not."""
        for file in sorted(self.folder.glob(f"{PREFIX}-*")):
            match = _FILE.fullmatch(file.name)
            if match:
                yield int(match["step"]), file, match["rest"]

    def _incomplete(self) -> list[Path]:
        """The files and folders of checkpoints without a manifest."""
        complete = set(self.steps())
        incomplete = [file for step, file, _ in self._files() if step not in complete]
        return [*incomplete, *self.folder.glob(f".{PREFIX}-*")]

    def _remove(self, step: int) -> None:
        """Removes the manifest first, so that a partly removed checkpoint does not look complete."""
        manifest_path(self.prefix(step)).unlink(missing_ok=True)
        for its_step, file, _ in self._files():
            if its_step == step:
                _delete(file)


def _is_complete(suffixes: Collection[str]) -> bool:
    """Whether TensorFlow has written all files of a checkpoint, by the suffixes of the files that are there."""
    data = [match for match in map(_DATA.fullmatch, suffixes) if match is not None]
    return ".index" in suffixes and bool(data) and len(data) == int(data[0]["count"])


def is_better(value: float, best: float | None, mode: str) -> bool:
    """Whether a metric is better than the best so far (None: there is none) by the mode 'max' or 'min'."""
    if best is None:
        return math.isfinite(value)
    return value > best if mode == "max" else value < best


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
