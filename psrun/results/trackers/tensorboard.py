"""TensorBoard: training and evaluation metrics against steps, and the configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from psrun.results import staleness
from psrun.results.events import Event, Progress
from psrun.tf_internals.summaries import write_session_start


class Summaries:
    """Writes each epoch's metrics and staleness under train/, and each evaluation's under evaluation/.

    Steps may be trained again, from an older checkpoint: then the values of the earlier process are not drawn.

    Args:
      values: of the configuration, by dotted key, written as text and as hyperparameters; None for none.
    """

    def __init__(self, folder: Path, values: Mapping[str, Any] | None) -> None:
        self._folder, self._values = folder, values
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
        name = {"epoch": "train", "evaluation": "evaluation", "staleness": "train"}.get(event.kind)
        if name is None:
            return
        scalars = dict(event.data.get("metrics", {}))
        if event.kind == "staleness":
            scalars = {f"staleness/{name}": value for name, value in staleness.brief(event.data).items()}
        if "steps_per_s" in event.data:
            scalars["steps_per_s"] = event.data["steps_per_s"]
        step = event.step or 0
        with self._writing(name):
            self._forget_repeated(event.kind, step, name)
            for key, value in scalars.items():
                if value is not None:  # undefined
                    tf.summary.scalar(key, value, step=step)

    def _forget_repeated(self, kind: str, step: int, name: str) -> None:
        """Makes TensorBoard forget what an earlier training wrote for steps that this one does again."""
        if name not in self._begun:  # files of earlier processes may be there
            self._begun.add(name)
            write_session_start(step if self._restored is None else min(step, self._restored + 1))
        elif step <= self._steps.get(kind, -1):  # the evaluator goes on while the chief starts again
            write_session_start(step)
        self._steps[kind] = step

    def _describe(self, values: Mapping[str, Any]) -> None:
        table = "".join(f"| {key} | {value} |\n" for key, value in values.items())
        plain = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in values.items()}
        with self._writing("."):
            tf.summary.text("configuration", f"| key | value |\n| --- | --- |\n{table}", step=0)
            hparams.hparams(plain)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._folder / name))
        # The writer belongs to this process' CPU: without the device TensorFlow may place its ops on a server.
        with tf.device("/CPU:0"), self._writers[name].as_default():
            yield
        self._writers[name].flush()

    def progress(self, progress: Progress) -> None:
        """Does nothing: only the results of complete epochs are drawn."""

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
