"""mode=predict: the predictions of a run's model for each example of the evaluation data, in order."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
from rich.console import Console
from rich.progress import track

from psrun import predictions, program, trained
from psrun.checkpoint.store import Store
from psrun.config import RunConfig
from psrun.data import opening
from psrun.errors import ConfigError, Problem
from psrun.reporting.console import warner
from psrun.reporting.run_folder import RunFolder


def run(run_config: RunConfig, folder: RunFolder, console: Console) -> None:
    """Writes the file and says where it is.

    Raises:
      PsrunError: there is no such checkpoint, nothing to predict, or the file cannot be written.
    """
    source, keys = opening.load_source(run_config), run_config.predict
    if not source.num_eval_examples:
        raise ConfigError([Problem("data", "has no evaluation examples to predict")])
    found = trained.load(run_config, source, Store(folder.checkpoints), warner(console))
    step = found.checkpoint.step
    path = folder.path / "predictions" / f"{step}.{keys.format}"
    if keys.path is not None:
        path = Path(keys.path).expanduser()
    batch_size = run_config.data.global_batch_size
    predict = tf.function(
        lambda batch: trained.predict(found.model, batch), input_signature=[trained.signature(source)]
    )
    count = 0
    with predictions.written(path, keys.format) as write:
        batches = source.evaluation(batch_size=batch_size).prefetch(2)
        num_batches = program.num_eval_batches(run_config, source)
        for features, label in track(batches, "predicting", total=num_batches, console=console, transient=True,
                                     disable=not console.is_terminal):  # fmt: skip
            values = predict(features)
            if isinstance(values, dict):
                raise ConfigError([Problem("model", "has several outputs; mode=predict writes one")])
            write(label.numpy(), values.numpy())
            count += len(label)
    console.print(f"{count} predictions of step {step} in {path}", soft_wrap=True)
