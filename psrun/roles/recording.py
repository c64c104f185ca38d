"""Records in run.json what a run depends on beside its configuration, while it starts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psrun.data import hashes
from psrun.errors import DataError
from psrun.results import provenance
from psrun.results.provenance import DIFF, WorkTree
from psrun.results.run_folder import RunFolder

_GIT_WITHIN_S = 15.0  # of two commands, which have bounds of their own
_HASHES_WITHIN_S = 10.0


class Recording:
    """The record of one process of a run.

    Git and the hashes of files work in threads beside the training: both can take seconds, and no step waits for them.

    Args:
      within: the folder whose repository is recorded: the current one of the run.
    """

    def __init__(self, folder: RunFolder, within: Path) -> None:
        self._folder = folder
        self._tree = WorkTree(note=f"git took more than {_GIT_WITHIN_S:g} s", dirty=None)
        self._copies: dict[str, str] = {}
        self._missing: list[str] = []
        self._is_other = False
        self._looking = threading.Thread(target=self._look, args=(within,), name="git", daemon=True)
        self._hashing: threading.Thread | None = None
        self._looking.start()

    def _look(self, within: Path) -> None:
        # A reproduction runs the code of another run, and not what is in the current folder.
        self._tree = provenance.kept_tree(self._folder.path) or provenance.work_tree(within)

    def begin(self, data_files: Sequence[str]) -> None:
        """Records code and environment, once the user's modules are imported; begins to hash files.

        Raises RunFolderError.
        """
        self._looking.join(_GIT_WITHIN_S)
        earlier = self._folder.stored().get("code") or {}
        self._is_other = bool(earlier.get("resumed_with_other_code"))
        self._copy_modules(earlier.get("modules") or {})
        with contextlib.suppress(OSError):
            self._write_diff()
        self._record_code()
        self._folder.emit("environment", **provenance.environment())
        self._hashing = threading.Thread(target=self._hash, args=(data_files,), name="hashes", daemon=True)
        self._hashing.start()

    def end(self) -> None:
        """Completes the record: modules that the training imported, and hashes. Raises RunFolderError."""
        if self._hashing is None:
            return
        if self._copy_modules({}):
            self._record_code()
        self._hashing.join(_HASHES_WITHIN_S)

    def _copy_modules(self, earlier: dict[str, str]) -> bool:
        """Copies the modules that were imported since the last call; returns whether there were any.

        Args:
          earlier: the copies of an earlier process of the run.
        """
        known = {*self._copies, *self._missing}
        new = {name: file for name, file in provenance.user_modules().items() if name not in known}
        self._is_other |= any(name in new and self._differs(copy, new[name]) for name, copy in earlier.items())
        copies, missing = provenance.copy_modules(self._folder.path, new)
        self._copies |= copies
        self._missing += missing
        return bool(new)

    def _differs(self, copy: str, file: Path) -> bool:
        try:
            return (self._folder.path / copy).read_bytes() != file.read_bytes()
        except OSError:
            return False

    def _write_diff(self) -> None:
        diff = self._folder.path / DIFF
        diff.unlink(missing_ok=True)
        if self._tree.diff:
            diff.parent.mkdir(exist_ok=True)
            diff.write_bytes(self._tree.diff)

    def _record_code(self) -> None:
        tree = self._tree
        facts: dict[str, Any] = {
            "commit": tree.commit,
            "branch": tree.branch,
            "dirty": tree.dirty,
            "diff": DIFF if (self._folder.path / DIFF).exists() else None,
            "modules": self._copies,
        }
        if note := "; ".join(filter(None, (tree.note, provenance.not_copied(self._missing)))):
            facts["note"] = note
        if self._is_other:
            facts["resumed_with_other_code"] = True
        self._folder.emit("code", **facts)

    def _hash(self, names: Sequence[str]) -> None:
        with contextlib.suppress(DataError):  # a file that was removed meanwhile
            known = hashes.compute(names)
            if known:  # generated data has none: the seed and the options of `data` define it
                self._folder.emit("hashes", hashes=known)
