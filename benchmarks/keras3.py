"""A model of Keras 3 against the same model of tf-keras: steps per second and per processor second, in turns.

    python benchmarks/keras3.py [--rounds N] [--only dense words tables] [--steps-per-epoch N] [--json FILE]

Each is a run of psrun with two workers and two parameter servers in one process; its rates are the medians of its
epochs after the first. What else the machine does weighs less on the steps per processor second. The goal: Keras 3 at
least 0.95 of tf-keras.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measured import BENCHMARKS, Goal, in_turns, run_python, show_goals
from rich.console import Console

LIBRARIES = ("keras", "tf_keras")
AT_LEAST = 0.95
_PROCESSOR = "by processor second"
_TABLES = ["--config-dir", str(BENCHMARKS / "conf"), "data=tables", "data.num_examples=16384"]
KINDS = {
    "dense": ["data=regression", "data.num_features=64", "data.global_batch_size=256"],
    "words": ["data=regression", "data.num_features=32", "data.global_batch_size=64"],
    "tables": [*_TABLES, "data.rows=20000", "data.global_batch_size=512"],
}


def model(source: Any, *, library: str, kind: str) -> Any:
    """The model of a kind in one of the two libraries: called by psrun."""
    import importlib

    keras = importlib.import_module(library)
    return {"dense": _dense, "words": _words, "tables": _tables}[kind](keras, source)


def _dense(keras: Any, source: Any) -> Any:
    """A multilayer perceptron with batch normalization and dropout."""
    layers = []
    for width in (256, 256, 128):
        layers += [keras.layers.Dense(width, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
    return keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])


def _words(keras: Any, source: Any) -> Any:
    """A recurrent layer, and attention, over a sequence of 32."""
    inputs = keras.Input((32,))
    tensor = keras.layers.Dense(32)(keras.layers.Reshape((32, 1))(inputs))
    tensor = keras.layers.LayerNormalization()(keras.layers.MultiHeadAttention(2, 16)(tensor, tensor))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(32)(tensor)))


def _tables(keras: Any, source: Any) -> Any:
    """26 tables in a collection of psrun, and a multilayer perceptron."""
    if keras.__name__ == "keras":
        from psrun.keras3.layers import EmbeddingCollection
    else:
        from psrun.layers import EmbeddingCollection
    ids = [name for name, feature in source.features.items() if feature.dtype.is_integer]
    dtypes = {name: feature.dtype.name for name, feature in source.features.items()}
    inputs = {name: keras.Input(source.features[name].shape, dtype=dtypes[name], name=name) for name in dtypes}
    tables = [{"name": name, "features": (name,), "num_ids": 20000, "dim": 16} for name in ids]
    block = EmbeddingCollection(tables, concatenate=True)({name: inputs[name] for name in ids})
    numbers = next(inputs[name] for name in inputs if name not in ids)
    tensor = keras.layers.Concatenate()([keras.layers.Flatten()(block), numbers])
    for width in (64, 32):
        tensor = keras.layers.Dense(width, "relu")(tensor)
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(tensor))


def note(context: Any) -> None:
    """A hook: adds the processor seconds of this process so far to a file in the run folder."""
    with (context.run_folder / "processor_s").open("a", encoding="utf-8") as file:
        file.write(f"{time.process_time()}\n")


def rates(kind: str, library: str, options: argparse.Namespace) -> tuple[float, float]:
    """Steps per second, and per processor second, of one run."""
    with tempfile.TemporaryDirectory(prefix="psrun-keras3-") as name:
        folder = Path(name) / "run"
        chosen = ["~model.hidden_units", "model._target_=keras3.model", f"+model.library={library}"]
        steps = [f"trainer.epochs={options.epochs}", f"trainer.steps_per_epoch={options.steps_per_epoch}"]
        steps += ["trainer.steps_per_execution=10", "trainer.hooks=[{_target_: keras3.note, every_epochs: 1}]"]
        common = ["cluster=inprocess", "evaluation=none", "checkpoint=none", "optimizer=sparse_adagrad"]
        command = [*KINDS[kind], "model=dense", *chosen, f"+model.kind={kind}", *common, *steps]
        run_python(["-m", "psrun", *command, f"hydra.run.dir={folder}"], Path(name))
        events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        spent_s = [float(line) for line in (folder / "processor_s").read_text(encoding="utf-8").split()]
    by_wall = [event["steps_per_s"] for event in events if event["event"] == "epoch"]
    by_processor = [options.steps_per_epoch / (after - before) for before, after in itertools.pairwise(spent_s)]
    return statistics.median(by_wall[1:]), statistics.median(by_processor)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps-per-epoch", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    console, rounds = Console(highlight=False), []
    for libraries in in_turns(LIBRARIES, options.rounds):
        round_: dict[str, float] = {}
        for kind, library in itertools.product(options.only, libraries):
            round_[f"{kind} {library}"], round_[f"{kind} {library} {_PROCESSOR}"] = rates(kind, library, options)
        console.print("  ".join(f"{name} {value:.1f}/s" for name, value in sorted(round_.items())))
        rounds.append(round_)
    goals = [
        Goal(f"{kind} keras{of}", f"{kind} tf_keras{of}", AT_LEAST)
        for kind in options.only
        for of in ("", f" {_PROCESSOR}")
    ]
    reached = show_goals(goals, rounds, console)
    if options.json:
        options.json.write_text(json.dumps({"rounds": rounds, "ratios": reached}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
