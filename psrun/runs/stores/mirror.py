"""What of a run is uploaded to a store when, and what a resumed run gets back.

Never is half a checkpoint in the store: its manifest is written after its files, and removed before them. The
configuration, the events until then and all else that the run needs to be resumed are there before the manifest;
run.json, which may say that the run is over, follows it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psrun.checkpoint.storage import PREFIX, SET_ASIDE, Store, manifest_path
from psrun.errors import CheckpointError
from psrun.results.events import METRICS
from psrun.results.run_folder import CHECKPOINTS, RESULT, is_needed, rebuilt
from psrun.runs.stores.remote import Remote

_FILE = f"{CHECKPOINTS}/{PREFIX}-"
_MANIFEST = manifest_path("").name


class Mirror:
    """Makes the objects of a run equal to the files of a local folder.

    Args:
      there: the names of the objects of the run.
      is_equal: whether the files were read from these objects.
    """

    def __init__(self, remote: Remote, folder: Path, there: set[str], *, is_equal: bool) -> None:
        self._remote = remote
        self._folder = folder
        self._holding = folder / ".uploading"
        self._checkpoints = Store(folder / CHECKPOINTS)
        self._there = there
        self._sent: dict[str, Any] = {}  # by name, what changes with the file; of a manifest, its text
        for name in there:
            if _is_manifest(name):
                self._sent[name] = remote.text(name)
            elif is_equal and (folder / name).exists():
                self._sent[name] = _stamp(folder / name)

    def has_new_checkpoint(self) -> bool:
        """Whether the run has saved a checkpoint since the last update."""
        return any(self._manifest(step) not in self._sent for step in self._checkpoints.steps())

    def update(self) -> None:
        """Uploads what has changed, and removes what the run has removed.

        Raises:
          ConfigError, StoreError: as `Remote`; the next call continues.
          OSError: a local file cannot be read.
        """
        shutil.rmtree(self._holding, ignore_errors=True)  # of an update that did not end
        steps = self._checkpoints.steps()
        for step in steps:
            self._send_checkpoint(step)
            shutil.rmtree(self._holding, ignore_errors=True)
        names = _local_names(self._folder)
        for name in names:
            self._send(name)
        self._send(RESULT)
        self._remove_old(names, steps)

    def _send_checkpoint(self, step: int) -> None:
        name = self._manifest(step)
        try:
            text = (self._folder / name).read_text(encoding="utf-8")
            if self._sent.get(name) == text:
                return
            files = self._held(step)
            if (self._folder / name).read_text(encoding="utf-8") != text:  # it is saved again: the next call sends it
                return
        except (FileNotFoundError, ValueError):  # the run has just removed it, or it is damaged
            return
        if name in self._there:  # of another checkpoint of this step
            self._remove(name)
        for file in files:
            self._send(f"{CHECKPOINTS}/{file.name}", file)
        for each in _local_names(self._folder):
            if is_needed(each):
                self._send(each)
        self._remote.write(name, text)
        self._there.add(name)
        self._sent[name] = text

    def _held(self, step: int) -> list[Path]:
        """The files of a checkpoint, which stay if the run removes it: a store may be slower than the run saves."""
        self._holding.mkdir(exist_ok=True)
        held = []
        for file in self._checkpoints.manifest(step).files:
            path = self._holding / file
            path.unlink(missing_ok=True)
            try:
                os.link(self._checkpoints.folder / file, path)
            except OSError:  # a disk without hard links; if the file is gone, the copy raises it again
                shutil.copy2(self._checkpoints.folder / file, path)
            held.append(path)
        return held

    def _send(self, name: str, file: Path | None = None) -> None:
        """Uploads a file of the run if it has changed; nothing without one.

        Args:
          file: where it is, if that is not its place in the folder.
        """
        file = file or self._folder / name
        if not file.exists():
            return
        stamp = _stamp(file)  # of before: the file may grow
        if self._sent.get(name) != stamp:
            self._remote.send(file, name)
            self._there.add(name)
            self._sent[name] = stamp

    def _remove_old(self, names: list[str], uploaded: list[int]) -> None:
        """Removes what the run has removed, but not the newest checkpoint there.

        A resumed run may have only the manifest of an old checkpoint: its files stay as long as that does.

        Args:
          uploaded: the steps of the checkpoints that were to be uploaded before, the newest first.
        """
        kept = {RESULT, *names}
        if uploaded:
            if self._manifest(uploaded[0]) not in self._sent:
                return
            newest = f"{_FILE}{uploaded[0]}."  # perhaps the run has removed it meanwhile
            kept |= {name for name in self._there if name.startswith(newest)}
        steps = self._checkpoints.steps()
        for step in steps:
            with contextlib.suppress(OSError, ValueError):
                kept.add(self._manifest(step))
                kept |= {f"{CHECKPOINTS}/{file}" for file in self._checkpoints.manifest(step).files}
        for name in sorted(self._there - kept, key=lambda name: not _is_manifest(name)):
            if name in self._sent or (name.startswith(_FILE) and steps):  # not what others have put there
                self._remove(name)

    def _remove(self, name: str) -> None:
        self._remote.remove(name)
        self._there.discard(name)
        self._sent.pop(name, None)

    def _manifest(self, step: int) -> str:
        return manifest_path(f"{_FILE}{step}").as_posix()


def fetch(remote: Remote, folder: Path, there: set[str], say: Callable[[str], None]) -> None:
    """Reads a run to a new folder, as `psrun resume` needs it.

    Of its checkpoints, that is the newest good one and the best one; of all others only the manifests, by which the run
    counts and removes them.

    Args:
      there: the names of the objects of the run. Those of damaged checkpoints are taken out, and so stay as they are.
      say: prints a line.

    Raises:
      ConfigError, StoreError: as `Remote`.
      CheckpointError: all checkpoints are damaged.
    """
    for name in there:
        if not name.startswith(_FILE) or _is_manifest(name):
            remote.get(name, folder / name)
    if rebuilt(folder).get("status") == "running":  # then run.json may be older: it is rebuilt from events
        (folder / RESULT).unlink(missing_ok=True)
    store = Store(folder / CHECKPOINTS)
    best = (store.best() or {}).get("step")
    has_any = bool(store.steps())
    for step in store.steps():
        damage = fetch_checkpoint(remote, store, step, there)
        if damage is None:
            break
        say(f"{remote.url}: the checkpoint of step {step} is damaged ({damage}); trying the previous one")
        manifest_path(store.prefix(step)).unlink()
        there -= {name for name in there if name.startswith(f"{_FILE}{step}.")}
    if has_any and not store.steps():
        raise CheckpointError(f"all checkpoints at {remote.url} are damaged; to start a new run, choose another URL")
    if best in store.steps():
        fetch_checkpoint(remote, store, best, there)


def fetch_checkpoint(remote: Remote, store: Store, step: int, there: set[str]) -> str | None:
    """Reads the files of a checkpoint whose manifest is here; returns its damage, None if it is good."""
    with contextlib.suppress(OSError, ValueError):  # of the manifest: that is its damage
        for file in store.manifest(step).files:
            if f"{CHECKPOINTS}/{file}" in there:
                remote.get(f"{CHECKPOINTS}/{file}", store.folder / file)
    return store.damage(step)


def _local_names(folder: Path) -> list[str]:
    """The files to upload beside checkpoints and run.json; hidden ones belong to a machine, or are being written.

    The events are the last: with them there is a run at the URL, which has its configuration then.
    """
    found = []
    for path, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".") or each == ".hydra"]
        if SET_ASIDE in folders:
            folders.remove(SET_ASIDE)
        for each in names:
            name = Path(path, each).relative_to(folder).as_posix()
            if not each.startswith(".") and not name.startswith(_FILE) and name != RESULT:
                found.append(name)
    return sorted(found, key=lambda name: name == METRICS)


def _is_manifest(name: str) -> bool:
    return name.startswith(_FILE) and name.endswith(_MANIFEST)


def _stamp(file: Path) -> tuple[int, int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino
