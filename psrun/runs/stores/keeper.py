"""The process of a run at a URL: its child trains in a local folder, and it mirrors that to the URL.

They are two processes, since a run may leave the network (`process.isolate`), may end at any place, forks tasks, which
the threads of a store do not survive, and must not wait for a store. A run that is killed is still uploaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from psrun import files, process
from psrun.config import groups
from psrun.errors import ConfigError, ExitCode, Interrupted, Problem
from psrun.results.events import METRICS
from psrun.results.run_folder import RESULT, RunFolder
from psrun.runs.stores.mirror import Mirror, fetch
from psrun.runs.stores.remote import BEAT_S, Remote

_COPY = ".store.json"  # in the local folder: the token of the copy
_LOOK_EVERY_S = 5.0  # for a complete checkpoint
_ALL_EVERY_S = 60.0
_LAST_WITHIN_S = 120.0  # without an answer of the store after the run has ended
_POLL_S = 0.1


def work_folder(url: str) -> Path:
    """The local folder in which this user runs the run at a URL."""
    name = url.rpartition("/")[2]
    return files.user_cache() / "stores" / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def begin(url: str, key: str) -> Path:
    """Goes on in a child process, in the returned local folder; the parent mirrors that until the child ends.

    Args:
      key: that names the URL: hydra.run.dir for a new run, else resume.

    Raises:
      ConfigError: the URL cannot be used, is in use, or holds a run (hydra.run.dir) or none (resume).
      StoreError: the store does not answer.
      CheckpointError: all checkpoints of the run are damaged.
      Interrupted: a signal ended the process before the run began.
    """
    url = url.rstrip("/")
    if "${" in url:
        raise ConfigError([Problem(key, f"is {url}; a run is found again by its URL: write a fixed name")])
    if "://" not in url:  # which ended there
        raise ConfigError([Problem(key, f"is {url}//; name a folder in the store, such as {url}//BUCKET/runs/RUN")])
    folder = work_folder(url)
    parent = os.getpid()
    may_begin, begins = os.pipe()
    child = os.fork()  # before there is a file system of fsspec
    if child:
        os.close(may_begin)
        _Keeper(url, key, folder, child, begins).keep()
    os.close(begins)
    process.end_with_parent(parent)
    os.setpgid(0, 0)  # it gets Ctrl-C from its parent: twice would mean at once
    if not os.read(may_begin, 1):
        os._exit(ExitCode.FAILED)  # the parent says why
    os.close(may_begin)
    groups.stand_for(folder, url)
    return folder


class _Keeper:
    """The parent process."""

    def __init__(self, url: str, key: str, folder: Path, child: int, begins: int) -> None:
        self._url = url
        self._key = key
        self._folder = folder
        self._child = child
        self._begins = begins
        self._resume = f"psrun resume {shlex.quote(url)}"
        self._console = Console(stderr=True, highlight=False)
        self._has_begun = threading.Event()
        self._code: int | None = None  # of the run, once it has ended
        self._ended_s = 0.0
        self._remote: Remote | None = None
        self._error: BaseException | None = None  # why the run cannot begin
        self._lacks: str | None = "the upload was not finished"  # why the end of the run is not at the URL

    def keep(self) -> NoReturn:
        """Ends this process as the run ends, but not with 0 if the end of the run is not at the URL."""
        process.set_title(f"mirror {self._url}")
        signals = [each for each in process.SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before there are threads, which would take them
        thread = threading.Thread(target=self._work, name="psrun-mirror", daemon=True)
        thread.start()
        while self._error is None and (self._code is None or (thread.is_alive() and not self._is_stuck())):
            received = signal.sigtimedwait(signals, _POLL_S)
            if received is not None and not self._has_begun.is_set():
                raise Interrupted(received.si_signo)
            if received is not None and self._code is not None:  # from somebody who does not wait for the store
                break
            if received is not None:
                os.kill(self._child, received.si_signo)
            if self._has_begun.is_set() and self._code is None:
                pid, status = os.waitpid(self._child, os.WNOHANG)
                if pid:
                    code = os.waitstatus_to_exitcode(status)
                    self._ended_s = time.monotonic()
                    self._code = code if code >= 0 else 128 - code
        if self._error is not None:
            raise self._error
        process.leave(self._outcome(self._code or ExitCode.DONE))

    def _is_stuck(self) -> bool:
        """Whether the store does not answer at the end of the run."""
        heard_s = self._remote.progressed_s if self._remote else 0.0
        return time.monotonic() > max(self._ended_s, heard_s) + _LAST_WITHIN_S

    def _outcome(self, code: int) -> int:
        """Says what is at the URL; returns the exit code of this process."""
        if self._lacks is None:
            if code not in (ExitCode.DONE, ExitCode.USAGE):
                self._say(f"all of the run is at {self._url}")
            return code
        is_lost = self._remote is not None and self._remote.is_lost
        then = "" if is_lost else f"; on this machine, {self._resume} uploads it"
        self._say(f"the end of the run is not at {self._url} ({self._lacks}), but in {self._folder}{then}", "red")
        return code or (ExitCode.FAILED if is_lost else ExitCode.RESTART)

    def _say(self, text: str, style: str = "yellow") -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: the upload goes on
            self._console.print(f"psrun: {text}", style=style, markup=False, soft_wrap=True)

    # -- in threads

    def _work(self) -> None:
        try:
            self._remote = Remote(self._url, self._key)
            mirror = self._prepared(self._remote)
        except BaseException as error:
            self._error = error
            return
        self._has_begun.set()
        os.write(self._begins, b".")
        self._follow(self._remote, mirror)

    def _prepared(self, remote: Remote) -> Mirror:
        """Claims the URL, and makes the local folder the newest state of the run there."""
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        lock = self._folder.with_name(f"{self._folder.name}.lock")
        lock.touch()
        if not files.hold(lock) or files.is_in_use(self._folder):
            raise remote.problem(f"{self._url} is running here; to end it: psrun stop {shlex.quote(self._url)}")
        there = {*remote.sizes()}
        record, _ = files.load_mapping(self._folder / _COPY)
        owner = remote.owner()
        token = record.get("token")
        has_copy = token is not None and owner.get("token") == token  # else another one was mirrored since
        if owner.get("host") != process.place()["host"]:  # on a disk of several machines: the owner may still run
            token = None
        has_run = not there.isdisjoint((RESULT, METRICS))
        resumes = self._key == "resume"
        here = RunFolder(self._folder)
        if resumes and not has_run and not has_copy:
            raise remote.problem(f"there is no run at {self._url}; name the URL of a run")
        if not resumes and has_run:
            message = f"{self._url} holds a run already; choose another URL, or resume the run: {self._resume}"
            raise remote.problem(message)
        if not resumes and here.has_run and not here.makes_room:
            then = f"to upload it: {self._resume}" if has_copy else "remove that folder, or choose another URL"
            raise remote.problem(f"{self._folder} holds a run that is not at {self._url}; {then}")
        is_new = not has_copy or not resumes
        remote.claim(None if is_new else token, self._say)
        threading.Thread(target=self._beat, args=(remote,), name="psrun-beat", daemon=True).start()
        if is_new:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            there = {*remote.sizes()}  # the owner before may have gone on
        if is_new and resumes:
            self._say(f"reading {self._url} to {self._folder}")
            fetch(remote, self._folder, there, self._say)
        files.write_atomic(self._folder / _COPY, json.dumps({"token": remote.token}), durable=True)
        mirror = Mirror(remote, self._folder, there, is_equal=is_new)
        mirror.update()  # before the run removes a file
        return mirror

    def _beat(self, remote: Remote) -> None:
        while True:  # until this process ends
            time.sleep(BEAT_S)
            with contextlib.suppress(Exception):  # of the store; the next beat follows
                remote.beat()

    def _follow(self, remote: Remote, mirror: Mirror) -> None:
        """Uploads what is finished, until the run has ended and all of it is there, or another machine takes over."""
        due_s = time.monotonic() + _ALL_EVERY_S
        has_failed = False
        looked_s = time.monotonic()
        while self._lacks is not None:
            has_ended = self._code is not None
            time.sleep(_POLL_S)
            if not has_ended and time.monotonic() < looked_s + _LOOK_EVERY_S:
                continue
            looked_s = time.monotonic()
            try:
                if not has_ended and looked_s < due_s and not mirror.has_new_checkpoint():
                    continue
                if self._code != ExitCode.USAGE or self._key == "resume":  # else there is no run
                    mirror.update()
                if has_ended:
                    remote.beat(releases=True)
            except Exception as error:  # of the store or the disk: a run does not end by it
                if not has_failed or remote.is_lost:
                    self._say(
                        f"{error}; the run goes on, {'without upload' if remote.is_lost else 'and tries it again'}"
                    )
                has_failed = True
                self._lacks = str(error)
                if remote.is_lost:
                    return
                time.sleep(_LOOK_EVERY_S)
                continue
            if has_failed:
                self._say(f"the upload to {self._url} works again")
            has_failed = False
            self._lacks = None if has_ended else "the upload was not finished"
            due_s = looked_s + _ALL_EVERY_S
