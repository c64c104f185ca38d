"""The objects of a run, or of runs, below a URL, and which machine mirrors to them."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from psrun import files, process
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError

_OWNER = ".psrun-owner.json"
BEAT_S = 10.0
STALE_S = 4 * BEAT_S
_SETTLED_S = 1.0
_LOOK_EVERY_S = 1.0


class StoreError(PsrunError):
    """A store does not answer; it may in a while."""

    exit_code = ExitCode.RESTART


class Remote:
    """The objects below a URL, by their names from there.

    Its methods raise ConfigError for what a person must change, and StoreError for all other errors of the store, and
    where another machine has taken over.

    Args:
      key: of the configuration, that names the URL; empty for an argument.

    Attributes:
      progressed_s: when the store last answered (`time.monotonic`).
      token: of the local copy of the run that this process mirrors; empty if it mirrors none.
      is_lost: whether another machine has taken over.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url
        self._key = key
        self.progressed_s = time.monotonic()
        self.token = ""
        self.is_lost = False
        self._is_released = False
        self._lock = threading.Lock()  # of the object that names the owner
        # A listing that is kept would not show what other machines write.
        options = {"use_listings_cache": False, "skip_instance_cache": True}
        if url.startswith("file:"):
            options["auto_mkdir"] = True  # as stores of objects, which need no folders
        try:
            from fsspec.core import url_to_fs  # an optional package

            self._fs, root = url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            reason = f"{url.partition('://')[0]}:// is unknown to fsspec, or its package is not installed"
            raise self.problem(f"{reason} ({error}): pip install 'psrun[fsspec]', and s3fs for s3://") from error
        except Exception as error:
            raise self._told(error) from error
        self._root = root.rstrip("/")

    def sizes(self) -> dict[str, int]:
        """The bytes of each object, by name."""
        sizes = {}
        with self._errors():
            for path, info in self._fs.find(self._root, detail=True).items():
                name = path[len(self._root) + 1 :]
                if info["type"] == "file" and name != _OWNER and ".." not in name.split("/"):
                    sizes[name] = int(info["size"])
        return sizes

    def text(self, name: str) -> str:
        """The content of a small object; empty if there is none."""
        with self._errors(), contextlib.suppress(FileNotFoundError):
            return self._fs.cat_file(f"{self._root}/{name}").decode()
        return ""

    def write(self, name: str, text: str) -> None:
        self._require_own()
        self._put(name, text)

    def send(self, file: Path, name: str) -> None:
        self._require_own()
        with self._errors():
            self._fs.put_file(str(file), f"{self._root}/{name}", callback=self._progress())

    def get(self, name: str, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._fs.get_file(f"{self._root}/{name}", str(file), callback=self._progress())

    def remove(self, name: str) -> None:
        self._require_own()
        with self._errors(), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{name}")

    def _put(self, name: str, text: str) -> None:
        with self._errors():
            self._fs.pipe_file(f"{self._root}/{name}", text.encode())

    # -- who mirrors

    def owner(self) -> Mapping[str, Any]:
        """The machine that mirrors to the URL, or did last; empty without one."""
        text = self.text(_OWNER)
        try:
            return files.as_mapping(json.loads(text or "{}"))
        except ValueError:  # two have written at once, to a store that is no store of objects
            return {"damaged": text}

    def claim(self, token: str | None, say: Callable[[str], None]) -> None:
        """Makes this machine the one that mirrors to the URL. Raises ConfigError if another one does.

        Stores have no locks. Two that claim at once both write, and read after a while what the last one has written.
        One that stands still in between may overwrite the claim of the other, which finds that at its next beat.

        Args:
          token: of the local copy if that is the newest state of the run: its last owner was this machine, and the
            caller knows that it has ended; None for a new copy.
          say: prints a line.
        """
        before = self.owner()
        if before and token is None and not before.get("released"):
            say(
                f"{self.url} has no end of its last run; {STALE_S:.0f} s to see whether {before.get('host')} mirrors it"
            )
            deadline_s = time.monotonic() + STALE_S  # by no times in the store: clocks of machines differ
            while time.monotonic() < deadline_s and not self.owner().get("released"):
                self._require(self.owner() == before)
                time.sleep(_LOOK_EVERY_S)
        self.token = token or secrets.token_hex(8)
        self._write_owner()
        time.sleep(_SETTLED_S)
        self._require(self.owner().get("token") == self.token)

    def beat(self, *, releases: bool = False) -> None:
        """Shows that this machine mirrors, or that it has ended; sets `is_lost` if another one has taken over."""
        with self._lock:
            if not self._is_released:
                self._require_own()
                self._write_owner(released=releases)
                self._is_released = releases

    def _write_owner(self, *, released: bool = False) -> None:
        owner = {"token": self.token, "released": released, "at_s": time.time(), **process.this_process()}
        self._put(_OWNER, json.dumps(owner))

    def _require_own(self) -> None:
        """Before each change: a machine that stood still does not know what has happened. Raises StoreError."""
        if self.token and self.owner().get("token") != self.token:
            self.is_lost = True
            self._require_not_lost()

    def _require_not_lost(self) -> None:
        if self.is_lost:
            raise StoreError(f"another machine has taken over {self.url}")

    def _require(self, is_free: bool) -> None:
        if not is_free:
            owner = self.owner()
            who = f"process {owner.get('pid')} on {owner.get('host')}"
            raise self.problem(f"{self.url} is in use: {who} mirrors a run to it; end that run, or choose another URL")

    # -- errors

    def problem(self, message: str) -> ConfigError:
        return ConfigError([Problem(self._key, message)])

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        self._require_not_lost()
        try:
            yield
        except Exception as error:  # stores have no class of errors in common
            raise self._told(error) from error
        self.progressed_s = time.monotonic()

    def _told(self, error: Exception) -> PsrunError:
        text = f"{self.url} cannot be used: {(str(error) or type(error).__name__).splitlines()[0]}"
        is_final = isinstance(error, (FileNotFoundError, PermissionError, NotImplementedError))
        if is_final or "Credentials" in type(error).__name__:
            return self.problem(text)
        return StoreError(text)

    def _progress(self) -> Any:
        """What fsspec calls while it copies a large file."""
        from fsspec.callbacks import Callback

        def heard(size: int | None, value: int) -> None:
            self.progressed_s = time.monotonic()

        return Callback(hooks={"heard": heard})
