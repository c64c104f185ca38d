"""What commands read of runs at URLs: temporary folders with copies of what a command needs."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from psrun.checkpoint.storage import PREFIX, Store
from psrun.config import groups
from psrun.errors import ConfigError
from psrun.results import run_folder
from psrun.results.events import METRICS
from psrun.results.run_state import SWEEP
from psrun.runs.stores.keeper import work_folder
from psrun.runs.stores.mirror import fetch_checkpoint
from psrun.runs.stores.remote import Remote

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_READ = ("list", "report", "diff", "logs", "checkpoint")  # commands that read copies
_HERE = ("watch", "stop")  # commands on what runs on this machine
_SMALL = (
    *(run_folder.RESULT, METRICS, run_folder.CONFIG, run_folder.NOTES, run_folder.SUBMITTED, SWEEP),
    *(run_folder.DATA, run_folder.PLACEMENT),
)
_WRITTEN = ("--to", "--csv", "--html")  # options whose value is no run
_CHECKPOINT = re.compile(rf"(?P<run>.+?)/{run_folder.CHECKPOINTS}(/ckpt-(?P<step>\d+)[^/]*)?")


@contextlib.contextmanager
def local(word: str, arguments: Sequence[str]) -> Iterator[list[str]]:
    """The arguments of a command, with folders of this machine in place of the URLs of runs.

    Raises:
      ConfigError: there is no run at a URL, it cannot be read, or the command takes no URL.
      StoreError: the store does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="psrun-") as folder:
        replaced = [*arguments]
        for at, argument in enumerate(arguments):
            if _URL.match(argument) is None or arguments[at - 1 : at] in [[option] for option in _WRITTEN]:
                continue
            url = argument.rstrip("/")
            if word == "rm":
                raise ConfigError(f"psrun rm removes folders on disks; remove {url} with the tools of the store")
            if word in _HERE:
                groups.stand_for(work_folder(url), url)
                replaced[at] = str(work_folder(url))
            if word in _READ:
                replaced[at] = str(_copy(word, arguments[0], url, Path(folder, str(at))))
        yield replaced


def _copy(word: str, subcommand: str, url: str, into: Path) -> Path:
    """The folder, or the checkpoint, in place of a URL."""
    match = _CHECKPOINT.fullmatch(url) if word == "checkpoint" else None
    run = match["run"] if match else url
    folder = into / run.rpartition("/")[2]
    groups.stand_for(folder, run)
    remote = Remote(run)
    there = remote.sizes()
    for name in there:
        is_exported = (word, subcommand) == ("checkpoint", "export") and run_folder.is_needed(name)
        if is_exported or _is_read(word, PurePosixPath(name)):
            remote.get(name, folder / name)
    if not folder.is_dir():
        raise ConfigError(f"there is no run at {run} or below it")
    if word == "checkpoint":
        step = int(match["step"]) if match and match["step"] else None
        _read_checkpoints(remote, folder, there, subcommand, step)
    return folder / url[len(run) + 1 :]


def _is_read(word: str, name: PurePosixPath) -> bool:
    above = name.parent.name
    if word == "checkpoint" and above == run_folder.CHECKPOINTS:
        return name.suffix == ".json"
    return name.name in _SMALL or above == ".hydra" or (word == "logs" and above == "logs")


def _read_checkpoints(remote: Remote, folder: Path, there: dict[str, int], subcommand: str, step: int | None) -> None:
    """Reads the checkpoints that a subcommand reads: all or the newest, or the one of `step`."""
    store = Store(folder / run_folder.CHECKPOINTS)
    if subcommand == "inspect":  # it reads sizes
        for name in there:
            if name.startswith(f"{run_folder.CHECKPOINTS}/{PREFIX}-") and not (folder / name).exists():
                (folder / name).touch()
                os.truncate(folder / name, there[name])
        return
    for each in store.steps():
        if step in (None, each):
            fetch_checkpoint(remote, store, each, {*there})
            if subcommand != "verify":
                return
