"""The folder that checkpoints are in: which are there and good, which one to take, which ones to keep. No TensorFlow.

A checkpoint `ckpt-N` is what TensorFlow wrote (`ckpt-N.index`, `ckpt-N.data-...`) and `ckpt-N.manifest.json`, written
last, with the size and checksum of each. Without a manifest it was never complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from psrun import files
from psrun.checkpoint import manifest
from psrun.checkpoint.manifest import Manifest
from psrun.errors import CheckpointError, ConfigError, Problem

PREFIX, STATE, SET_ASIDE = "ckpt", "checkpoint", "set-aside"
_BEST = "best.json"
_FILE = re.compile(rf"{PREFIX}-(?P<step>\d+)(?P<rest>[._].*)")
_DATA = re.compile(r"\.data-(?P<index>\d+)-of-(?P<count>\d+)")
_MANIFEST = ".manifest.json"
_LATEST, _BEST_ONE = "latest", "best"
_ALONE_WITHIN_S = 5.0


class Store:
    """The checkpoints in `folder`, which need not be there yet. One process at a time may write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._passed_over: set[int] = set()

    def prefix(self, step: int) -> str:
        """What TensorFlow calls the path of the checkpoint of `step`."""
        return str(self.folder / f"{PREFIX}-{step}")

    def steps(self) -> list[int]:
        """Of all checkpoints that were complete once, the newest first."""
        return sorted((step for step, file, rest in self._files() if rest == _MANIFEST), reverse=True)

    def damage(self, step: int, *, thorough: bool = True) -> str | None:
        """What is wrong with the checkpoint of `step`; None where nothing is.

        Args:
          thorough: whether to read all of it, in pieces, or to look at the sizes of its files only.

        Raises:
          CheckpointError: it cannot be read now.
        """
        try:
            found = self.manifest(step)
            for name, recorded in found.files.items():
                file = self.folder / name
                size = file.stat().st_size
                if size != recorded["bytes"]:
                    return f"{name} has {size:,} bytes, not {recorded['bytes']:,}"
                if thorough and manifest.file_digest(file) != recorded["sha256"]:
                    return f"{name} has a checksum mismatch"
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except OSError as error:  # perhaps only now: nothing is passed over or set aside for it
            raise CheckpointError(f"{self.prefix(step)} cannot be read: {error}") from error
        except ValueError as error:
            return f"its manifest is damaged ({error})"
        return None

    def manifest(self, step: int) -> Manifest:
        """Raises OSError or ValueError where it cannot be read."""
        return manifest.read(self.prefix(step))

    def choose(self, which: str, warn: Callable[[str], None]) -> Manifest | None:
        """The newest good checkpoint, completely verified; None if there has never been one.

        Args:
          which: 'latest' (a damaged one is passed over, with a warning, for the one before), 'best', or a step.

        Raises:
          CheckpointError: there are checkpoints and none is good, or the one that was named is not.
          ConfigError: there is no such checkpoint.
        """
        if which != _LATEST:
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
        """Of all checkpoints, also of those that are taken meanwhile."""
        tried: set[int] = set()
        while left := [step for step in self.steps() if step not in tried]:
            tried.add(left[0])
            yield left[0]

    def _named(self, which: str) -> Manifest:
        found, best = self.steps(), self.best()
        step = best["step"] if best and which == _BEST_ONE else which
        if str(step) not in map(str, found):
            there = ", ".join(map(str, found)) or "none"
            message = f"there is no checkpoint '{which}' in {self.folder} (there: {there})"
            raise ConfigError([Problem("restore", message)])
        damage = self.damage(int(step))
        if damage:
            raise CheckpointError(f"{self.prefix(int(step))} is damaged: {damage}")
        return self.manifest(int(step))

    def make_room(self, step: int) -> None:
        """Removes what saves that were cut short left behind, and a checkpoint of the same step. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest.path(self.prefix(step)).unlink(missing_ok=True)  # now it is one of those
        complete = set(self.steps())
        for of, file, _ in self._files():
            if of not in complete:
                _delete(file)
        for file in self.folder.glob(f".{PREFIX}-*"):
            _delete(file)

    def complete(self, held: Manifest) -> Manifest:
        """Makes a checkpoint whose files TensorFlow has written complete: all on disk, and a manifest beside them.

        Raises:
          OSError: something cannot be written, or is missing.
        """
        named = {rest: file for step, file, rest in self._files() if step == held.step and rest != _MANIFEST}
        data = [match for match in map(_DATA.fullmatch, named) if match]
        if ".index" not in named or len(data) != int(data[0]["count"] if data else -1):
            raise FileNotFoundError(
                f"{self.folder} holds only {', '.join(sorted(f.name for f in named.values())) or 'no file'} of "
                f"{PREFIX}-{held.step}; mount the same run folder in all tasks"
            )
        listed = {}
        for file in sorted(named.values()):
            files.sync(file)
            listed[file.name] = {"bytes": file.stat().st_size, "sha256": manifest.file_digest(file)}
        files.sync(self.folder)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        whole = replace(held, files=listed, saved_at=now)
        manifest.write(self.prefix(held.step), whole)
        return whole

    def prune(self, newest: int, max_to_keep: int) -> list[int]:
        """Removes all but `newest`, those that came before it, `max_to_keep` in all, and the best one.

        Returns:
          The steps kept, the newest first. Raises OSError.
        """
        others = [step for step in self.steps() if step != newest]
        kept = [newest, *others[: max_to_keep - 1]]
        for step in others[max_to_keep - 1 :]:
            with self._alone():  # an evaluator may change meanwhile which one is the best
                if step == (self.best() or {}).get("step"):
                    kept.append(step)
                else:
                    self._remove(step)
        return kept

    def set_aside(self) -> list[int]:
        """Moves the checkpoints that `choose` passed over where they are in nobody's way. Raises OSError."""
        steps, self._passed_over = sorted(self._passed_over), set()
        for of, file, _ in self._files():
            if of in steps:
                (self.folder / SET_ASIDE).mkdir(exist_ok=True)
                file.replace(self.folder / SET_ASIDE / file.name)
        return steps

    def best(self) -> dict | None:
        """The best checkpoint: `step`, `metric`, `mode` and `value`; None where none was compared or it is gone."""
        try:
            found = json.loads((self.folder / _BEST).read_text(encoding="utf-8"))
            best = {name: found[name] for name in ("step", "metric", "mode", "value")}
            # There may be another one of the same step: the one that was compared was damaged and set aside.
            return best if self.manifest(found["step"]).files == found["files"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def compare(self, step: int, metric: str, value: float, *, mode: str) -> bool:
        """Whether the checkpoint of `step` is the best so far by `metric`; then it is the one kept.

        Args:
          mode: 'max' where more is better, else 'min'.

        Raises:
          OSError, ValueError: it is not there, or the folder cannot be written to.
        """
        with self._alone():
            before = self.best()
            contest = before is not None and (before["metric"], before["mode"]) == (metric, mode)
            better = is_better(value, before["value"] if before and contest else None, mode)
            if better:
                listed = self.manifest(step).files
                found = {"step": step, "metric": metric, "mode": mode, "value": value, "files": listed}
                files.write_atomic(self.folder / _BEST, json.dumps(found) + "\n", durable=True)
        return better

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process looks which checkpoint is the best, or removes one; waits a bounded time for that."""
        # Not the folder itself: where locks are emulated, as on NFS, only what is open for writing can be locked.
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            deadline_s = time.monotonic() + _ALONE_WITHIN_S
            while time.monotonic() < deadline_s and not _locked(descriptor):
                time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)

    def _files(self) -> Iterator[tuple[int, Path, str]]:
        """Step, path and ending of everything that belongs to a checkpoint, whole or not."""
        for file in sorted(self.folder.glob(f"{PREFIX}-*")):
            match = _FILE.fullmatch(file.name)
            if match:
                yield int(match["step"]), file, match["rest"]

    def _remove(self, step: int) -> None:
        """The manifest first: a checkpoint of which a part is gone must not look complete."""
        manifest.path(self.prefix(step)).unlink(missing_ok=True)
        for of, file, _ in self._files():
            if of == step:
                _delete(file)


def is_better(value: float, best: float | None, mode: str) -> bool:
    """Whether a metric is better than the best so far (None: there is none), by the mode 'max' or 'min'."""
    if best is None:
        return math.isfinite(value)
    return value > best if mode == "max" else value < best


def _locked(descriptor: int) -> bool:
    """Whether there is nothing to wait for: the lock is ours, or the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
