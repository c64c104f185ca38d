"""A run whose events and checkpoints are scripted, without TensorFlow, and stores that stop or fail at a given call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psrun.checkpoint.storage import Contents, Manifest, Position, Store
from psrun.results.events import event_of
from psrun.results.run_folder import FOLLOWING, METRICS, RunFolder

KEPT = 2


def save(folder: Path, step: int, *, content: bytes = b"") -> Store:
    """Saves a complete checkpoint of three files, and removes old ones; returns the checkpoints."""
    store = Store(folder / "checkpoints")
    store.make_room(step)
    files = {"index": b"index", "data-00000-of-00002": b"0" * 100, "data-00001-of-00002": b"1" * 50}
    for name, text in files.items():
        Path(f"{store.prefix(step)}.{name}").write_bytes(b"%d %s" % (step, content + text))
    store.complete(Manifest(step, Position(), Contents("Adagrad", {}, {}, [], {}), "0" * 64, ""))
    store.prune(step, KEPT)
    return store


def scripted(path: Path, *, num_checkpoints: int = 4) -> Iterator[RunFolder]:
    """A run that yields after each thing that it has done: it begins, saves checkpoints, and ends.

    Before each checkpoint it records the state of early stopping, and ids in a file.
    """
    folder = RunFolder.create(path, raw={"seed": 1})
    folder.emit("begun", overrides=["seed=1"], started_s=0.0, mode="train")
    yield folder
    for number in range(1, num_checkpoints + 1):
        step = 10 * number
        folder.emit("epoch", step=step, epoch=number, epochs=num_checkpoints, metrics={"loss": 1.0 / number},
                    steps_per_s=1.0, examples_per_s=1.0, steps_repeated=0)  # fmt: skip
        (path / FOLLOWING).write_text(json.dumps([{"step": step}]))
        Store(folder.checkpoints).write_vocabularies({f"{step}.jsonl": ["a", "b"]})
        if number % 2:
            yield folder
        save(path, step)
        folder.emit("checkpoint", step=step, path=f"ckpt-{step}", good=True, seconds=0.1)
        yield folder
    folder.emit("ended", status="completed", exit_code=0)
    yield folder


def epochs(folder: Path) -> list[int]:
    """The epochs that the run in a folder has recorded."""
    lines = (folder / METRICS).read_bytes().splitlines()
    events = [event for event in map(event_of, lines) if event is not None]
    return [event.data["epoch"] for event in events if event.kind == "epoch"]


class Stopped(BaseException):
    """The machine is gone."""


class Interfered:
    """A file system of fsspec that raises an error in place of its `at`-th call that changes something.

    Attributes:
      calls: how many of these there were.
    """

    _CHANGES = ("pipe_file", "put_file", "rm_file")

    def __init__(self, system: Any, at: int | None, error: BaseException) -> None:
        self._system = system
        self._at = at
        self._error = error
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._system, name)
        if name not in self._CHANGES:
            return function

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                raise self._error
            return function(*arguments, **options)

        return call


def half_checkpoints(objects: dict[str, bytes]) -> list[str]:
    """The manifests in a store whose files are not all there as they were saved.

    Args:
      objects: the content of each, by name.
    """
    import hashlib

    half = []
    for name, content in objects.items():
        if not name.endswith(".manifest.json"):
            continue
        for file, recorded in json.loads(content)["files"].items():
            there = objects.get(f"checkpoints/{file}", b"")
            if hashlib.sha256(there).hexdigest() != recorded["sha256"]:
                half.append(name)
    return half


def lacks(objects: dict[str, bytes]) -> list[str]:
    """What a run in a store needs to be resumed from its newest checkpoint, and lacks.

    Args:
      objects: the content of each, by name.
    """
    steps = [json.loads(text)["step"] for name, text in objects.items() if name.endswith(".manifest.json")]
    if not steps:  # with events it is a run, which is resumed from its start
        return ["config.yaml"] if METRICS in objects and "config.yaml" not in objects else []
    needed = {"config.yaml", METRICS, FOLLOWING, f"checkpoints/vocabularies/{max(steps)}.jsonl"}
    lacking = sorted(needed - objects.keys())
    if not lacking and json.loads(objects[FOLLOWING])[-1]["step"] < max(steps):
        lacking.append(f"{FOLLOWING} of step {max(steps)}")
    return lacking


def go_on(url: str, folder: Path, told: Any) -> None:
    """A machine that resumes the run at a URL, or begins it, and trains until it is killed.

    Args:
      told: a connection that gets the step of each checkpoint once that is in the store; first 0.
    """
    from psrun.runs.stores.mirror import Mirror, fetch
    from psrun.runs.stores.remote import Remote

    remote = Remote(url)
    there = {*remote.sizes()}
    if METRICS in there:
        fetch(remote, folder, there, print)
        run = RunFolder.resume(folder)
    else:
        run = RunFolder.create(folder, raw={"seed": 1})
        run.emit("begun", overrides=["seed=1"], started_s=0.0, mode="train")
    mirror = Mirror(remote, folder, there, is_equal=True)
    newest = Store(run.checkpoints).choose("latest", print)
    step = newest.step if newest else 0
    told.send(0)
    while True:
        step += 10
        run.emit("epoch", step=step, epoch=step // 10, epochs=10**6, metrics={"loss": 1.0},
                 steps_per_s=1.0, examples_per_s=1.0, steps_repeated=0)  # fmt: skip
        (folder / FOLLOWING).write_text(json.dumps([{"step": step}]))
        Store(run.checkpoints).write_vocabularies({f"{step}.jsonl": ["a", "b"]})
        save(folder, step)
        run.emit("checkpoint", step=step, path=f"ckpt-{step}", good=True, seconds=0.1)
        mirror.update()
        told.send(step)
