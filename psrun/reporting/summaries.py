"""TensorBoard scalars: training and evaluation metrics against steps."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from psrun.reporting.events import Event, Progress


class Summaries:
    """Writes each epoch's metrics under train/ and each evaluation's under evaluation/."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def event(self, event: Event) -> None:
        name = {"epoch": "train", "evaluation": "evaluation"}.get(event.kind)
        if name is None:
            return
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._folder / name))
        writer = self._writers[name]
        scalars = dict(event.data["metrics"])
        if "steps_per_s" in event.data:
            scalars["steps_per_s"] = event.data["steps_per_s"]
        # The writer belongs to this process' CPU: without the device TensorFlow may place its ops on a server.
        with tf.device("/CPU:0"), writer.as_default():
            for key, value in scalars.items():
                tf.summary.scalar(key, value, step=event.step)
        writer.flush()

    def progress(self, progress: Progress) -> None:
        """Only what an epoch's end has settled is drawn."""

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
