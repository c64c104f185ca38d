"""Composing a configuration as the command does, variables of a run's checkpoints, and what disks do to files."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from psrun.config import parse
from psrun.config.run_config import RunConfig

if TYPE_CHECKING:
    import numpy as np

    from psrun.results.run_folder import RunFolder

REPOSITORY = Path(__file__).parents[2]
HARNESS = Path(__file__).parent  # of the modules that tests, and the processes that they start, import
SMALL = {
    "features": ["data.num_train_examples=500", "data.num_eval_examples=100", "data.global_batch_size=32"],
    "regression": ["data.num_train_examples=500", "data.num_eval_examples=100", "data.global_batch_size=32"],
}
STEPS = 12
# Of processes in which tests run clusters; commands that get `environment` have TensorFlow's defaults. By default each
# server has 64 threads, which wait for others and cannot be stopped; each cluster of another size adds 100.
IN_PROCESS = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_GRPC_WORKER_CACHE_QUEUES": "2"}
# Of runs that a test ends. For more, psrun traces unrolled steps while it trains, which takes 4 s of the processor.
# With `fault_injection.MOSTLY_WAITING` these take more than three minutes.
MANY_STEPS = 3900
TRAINING = ["trainer.epochs=2", f"trainer.steps_per_epoch={STEPS}", "trainer.steps_per_execution=3"]
MODELS = {
    "dense": SMALL["regression"],
    "embedding": SMALL["features"],
    "cnn": ["data.global_batch_size=16", "model.filters=[4]", "model.hidden_units=[8]"],
    "wide_deep": ["data=features", *SMALL["features"]],
}
TABLED = ("~model.embedding_dim", "~data.num_train_examples", "~data.num_eval_examples", "data._target_=embeddings.Ids",
          "data.global_batch_size=8", "evaluation=none")  # fmt: skip
# One worker applies the same steps in the same order: what differs is the order of sums within a step.
SAME = {"rtol": 2e-4, "atol": 2e-5}


parse.register_resolvers()


def environment(**more: str) -> dict[str, str]:
    """The environment variables of a command, with the defaults of TensorFlow."""
    return {**{name: value for name, value in os.environ.items() if name not in IN_PROCESS}, **more}


def raw_config(*overrides: str) -> dict[str, Any]:
    """The composed configuration as plain values."""
    return copy.deepcopy(_composed(overrides))


@functools.cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    with initialize_config_module("psrun.conf", version_base="1.3"):
        raw: Any = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    return raw


def run_config(*overrides: str) -> RunConfig:
    return parse.load(raw_config(*overrides))


def last_choices(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command without the choices of a group that a later one replaces; psrun refuses two."""
    last = {argument.partition("=")[0]: argument for argument in arguments}
    return [each for each in arguments if each.partition("=")[0] not in parse.GROUPS or each in last.values()]


def many_epochs(steps_per_epoch: int) -> str:
    """The argument for `MANY_STEPS`."""
    return f"trainer.epochs={MANY_STEPS // steps_per_epoch}"


def variables(folder: RunFolder) -> dict[str, np.ndarray]:
    """Everything in the newest checkpoint, whole whatever the sharding was."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder.checkpoints)))
    names = [name for name in reader.get_variable_to_shape_map() if "save_counter" not in name and "GRAPH" not in name]
    return {name: reader.get_tensor(name) for name in names}


def stated(error: BaseException, **places: Path) -> str:
    """What a golden file keeps of an error: its type and its text, with `<name>` for each place of files."""
    text = f"{type(error).__name__}: {error}"
    for name, place in places.items():
        text = text.replace(str(place), f"<{name}>")
    return text


def truncated(file: Path) -> None:
    """Takes the end off a file."""
    file.write_bytes(file.read_bytes()[:-3])


def flipped(file: Path) -> None:
    """Flips a bit in the middle of a file."""
    held = bytearray(file.read_bytes())
    held[len(held) // 2] ^= 1
    file.write_bytes(held)


def write_values(checkpoint: Any, path: str) -> None:
    """Writes the present values of a `LogicalCheckpoint`."""
    saving = checkpoint.saving()
    saving.stage(copies=False)
    saving.write(path)
