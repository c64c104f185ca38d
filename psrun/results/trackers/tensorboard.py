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


class Summaries:
    """Writes each epoch's metrics and staleness under train/, and each evaluation's under evaluation/.

    Args:
      values: of the configuration, by dotted key, written as text and as hyperparameters; None for none.
    """

    def __init__(self, folder: Path, values: Mapping[str, Any] | None) -> None:
        self._folder, self._values = folder, values
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def event(self, event: Event) -> None:
        if event.kind == "planned" and self._values is not None:
            self._values = {**self._values, **event.data}
        if event.kind == "placement" and self._values is not None:  # TensorFlow must not run anything before
            self._describe(self._values)
        name = {"epoch": "train", "evaluation": "evaluation", "staleness": "train"}.get(event.kind)
        if name is None:
            return
        scalars = dict(event.data.get("metrics", {}))
        if event.kind == "staleness":
            scalars = {f"staleness/{name}": value for name, value in staleness.brief(event.data).items()}
        if "steps_per_s" in event.data:
            scalars["steps_per_s"] = event.data["steps_per_s"]
        with self._writing(name):
            for key, value in scalars.items():
                if value is not None:  # undefined
                    tf.summary.scalar(key, value, step=event.step)

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
