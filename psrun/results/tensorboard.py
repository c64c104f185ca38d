"""TensorBoard: metrics, the configuration as text and as hyperparameters, and the system of each task."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from psrun.config import choices
from psrun.results import events
from psrun.results.events import Event, Sink
from psrun.results.tracking import TrackedRun
from psrun.tf_internals.messages import write_session_start

_OF_WAITS = ("waited_s", "gradients_applied", "updates_dropped", "update_s", "weight")
_WRITERS = {"epoch": "train", "evaluation": "evaluation", "staleness": "train", "waits": "train", "system": "system"}
_FILE_PREFIX = "events.out.tfevents."  # then SECONDS.HOST.PID.NUMBER.v2


class TensorBoardSink(Sink):
    """Writes each epoch's metrics, staleness and waits under train/, each evaluation's under evaluation/, and system/.

    Steps may be trained again, from an older checkpoint: then the values of the earlier process are not drawn. The
    configuration is written as text and as hyperparameters.
    """

    def __init__(self, chosen: choices.TensorBoard, run: TrackedRun) -> None:
        self._folder = run.folder.tensorboard
        self._values = run.values
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        self._begun: set[str] = set()  # the names of writers that write metrics
        self._steps: dict[str, int] = {}  # the last one by kind of event
        self._restored: int | None = None

    def event(self, event: Event) -> None:
        if event.kind == "planned" and self._values is not None:
            self._values = {**self._values, **event.data}
        if event.kind == "placement" and self._values is not None:  # TensorFlow must not run anything before
            self._describe(self._values)
        if event.kind == "restored":
            self._restored = event.step
        name = _WRITERS.get(event.kind)
        if name is None:
            return
        scalars = _scalars(event)
        step = event.step or 0
        with self._writing(name):
            self._forget_repeated(event.kind, step, name)
            for key, value in scalars.items():
                if value is not None:  # undefined
                    tf.summary.scalar(key, value, step=step)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _forget_repeated(self, kind: str, step: int, name: str) -> None:
        """Makes TensorBoard forget what an earlier training wrote for steps that this one does again."""
        if name not in self._begun:  # files of earlier processes may be there
            self._begun.add(name)
            write_session_start(step if self._restored is None else min(step, self._restored + 1))
            self._steps[kind] = step
            return
        last = self._steps.get(kind, -1)
        is_again = step < last if kind == "system" else step <= last  # several samples may be of one step
        if is_again:  # the evaluator goes on while the chief starts again
            write_session_start(step)
        self._steps[kind] = step

    def _describe(self, values: Mapping[str, Any]) -> None:
        table = "".join(f"| {key} | {value} |\n" for key, value in values.items())
        plain = {}
        for key, value in values.items():
            plain[key] = value if isinstance(value, bool | int | float) else str(value)
        with self._writing("."):
            tf.summary.text("configuration", f"| key | value |\n| --- | --- |\n{table}", step=0)
            hparams.hparams(plain)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        if name not in self._writers:
            folder = self._folder / name
            _wait_for_a_later_name(folder)
            self._writers[name] = tf.summary.create_file_writer(str(folder))
        # The writer belongs to this process' CPU: without the device TensorFlow may place its ops on a server.
        with tf.device("/CPU:0"), self._writers[name].as_default():
            yield
        self._writers[name].flush()


def _wait_for_a_later_name(folder: Path) -> None:
    """Waits until a new events file in `folder` sorts behind the files that are there; a little over 1 s at most.

    TensorBoard reads the files of a folder in the order of their names, which begin with the second in which
    TensorFlow opened them. Within one second, process ids and counters are compared as text ("10" before "9"): the
    file of a restored training could be read before the earlier file, and TensorBoard would draw forgotten values.
    """
    give_up = time.monotonic() + 1.1  # a file of a host whose clock is ahead does not stop the training
    newest = _newest_second(folder)
    while newest >= int(time.time()) and time.monotonic() < give_up:
        time.sleep(0.02)


def _newest_second(folder: Path) -> int:
    """The latest second in the names of the events files in `folder`; 0 without any."""
    newest = 0
    for path in folder.glob(f"{_FILE_PREFIX}*"):
        second = path.name.removeprefix(_FILE_PREFIX).partition(".")[0]
        if second.isdecimal():
            newest = max(newest, int(second))
    return newest


def _scalars(event: Event) -> dict[str, float | None]:
    """The values of an event by their tag."""
    if event.kind == "staleness":
        return {f"staleness/{name}": value for name, value in events.brief_staleness(event.data).items()}
    if event.kind == "waits":
        return {f"consistency/{name}": _total(event.data[name]) for name in _OF_WAITS if name in event.data}
    if event.kind == "system":  # a section for each quantity, with one chart a task
        return {f"{name}/{event.data['task']}": value for name, value in event.data.items() if name != "task"}
    others = {}
    virtual = event.data.get("virtual", {})  # in place of the rate of the process
    for name in events.LEARNING_RATES if virtual else (*events.LEARNING_RATES, "steps_per_s"):
        if name in event.data:
            others[name] = event.data[name]
    for name, value in virtual.items():
        others[f"virtual/{name}"] = value
    return {**event.data.get("metrics", {}), **others}


def _total(value: Any) -> float:
    """A value, or the sum of the values of all tasks."""
    return float(sum(value.values()) if isinstance(value, Mapping) else value)
