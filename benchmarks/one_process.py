"""What one process of psrun costs beside a plain script with Keras: the tutorial's table, about the same network.

    python benchmarks/one_process.py penguins.csv [--rounds N]

docs/tutorials/your-csv.md says how to get the table. Each round runs each kind once, as a process of its own; who goes
first changes. Times count from the start of the process to its end. The network is psrun's `wide_deep`, but psrun also
encodes the numbers by bins. All take 140 steps of 32 rows, evaluate after every seventh, and save.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

WORDS = ("Species", "Island")
NUMBERS = ("Culmen Length (mm)", "Culmen Depth (mm)", "Flipper Length (mm)", "Body Mass (g)")
LABEL = "Sex"
BATCH_SIZE, EPOCHS, STEPS_PER_EPOCH, EMBEDDING_DIM = 32, 20, 7, 8
RATE = 0.003


def by_hand(path: str) -> None:
    """Trains, evaluates after each epoch, and saves, as Keras' guides do."""
    import os

    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # the Keras that psrun uses
    import numpy as np
    import pandas
    import tf_keras
    from tf_keras import layers

    table = pandas.read_csv(path, na_values="NA").dropna(subset=[LABEL, *NUMBERS])
    is_training = np.random.default_rng(1).uniform(size=len(table)) < 0.7
    inputs, wide, deep = {}, [], []
    for name in WORDS:
        inputs[name] = layers.Input((1,), dtype="string", name=name)
        lookup = layers.StringLookup(vocabulary=sorted(set(table[name])))
        ids = lookup(inputs[name])
        wide.append(layers.Flatten()(layers.Embedding(lookup.vocabulary_size(), 1)(ids)))
        deep.append(layers.Flatten()(layers.Embedding(lookup.vocabulary_size(), EMBEDDING_DIM)(ids)))
    for name in NUMBERS:
        key = name.split(" (")[0].replace(" ", "_")
        values = table[name][is_training]
        inputs[name] = layers.Input((1,), name=key)
        deep.append(layers.Normalization(mean=values.mean(), variance=values.var())(inputs[name]))
    hidden = layers.Concatenate()(deep)
    for width in (256, 128):
        hidden = layers.Dropout(0.3)(layers.Dense(width, "relu")(hidden))
    prediction = layers.Dense(1, "sigmoid")(layers.Concatenate()([*wide, hidden]))
    model = tf_keras.Model([*inputs.values()], prediction)
    model.compile(tf_keras.optimizers.Adam(RATE), "binary_crossentropy", ["AUC", "accuracy"])

    def part(rows: pandas.DataFrame) -> tuple[list[np.ndarray], np.ndarray]:
        columns = [rows[name].to_numpy(object if name in WORDS else np.float32)[:, np.newaxis] for name in inputs]
        return columns, (rows[LABEL] == "MALE").to_numpy(np.float32)[:, np.newaxis]

    features, labels = part(table[is_training])
    model.fit(
        features, labels, batch_size=BATCH_SIZE, epochs=EPOCHS, steps_per_epoch=STEPS_PER_EPOCH,
        validation_data=part(table[~is_training]), verbose=2,
    )  # fmt: skip
    model.save_weights("weights/last")


def of_psrun(path: str, cluster: str) -> list[str]:
    """The arguments of Python for the same with psrun."""
    features = ",".join(f"{name}: {{column: '{name}', dtype: string}}" for name in WORDS)
    features += "," + ",".join(
        f"{name.split(' (')[0].replace(' ', '_')}: {{column: '{name}', nullable: true}}" for name in NUMBERS
    )
    return [
        "-m", "psrun", f"cluster={cluster}", "data=table", f"data.path={path}", f"data.label={LABEL}",
        f"data.features={{{features}}}", "data.split.fraction=0.3", "model=wide_deep",
        f"model.embedding_dim={EMBEDDING_DIM}", f"data.global_batch_size={BATCH_SIZE}", f"trainer.epochs={EPOCHS}",
        f"trainer.steps_per_epoch={STEPS_PER_EPOCH}", f"optimizer.learning_rate={RATE}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="the table of the tutorial")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--by-hand", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    path = str(Path(given.path).absolute())
    if given.by_hand:
        by_hand(path)
        return

    from measured import Spent, Summary, in_turns, run_python
    from rich.console import Console

    kinds = {
        "Keras by hand": [str(Path(__file__).absolute()), "--by-hand", path],
        "psrun cluster=none": of_psrun(path, "none"),
        "psrun cluster=inprocess": of_psrun(path, "inprocess"),
    }
    spent: dict[str, list[Spent]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for names in in_turns([*kinds], given.rounds):
            for name in names:
                spent[name].append(run_python(kinds[name], Path(folder)))
    console = Console(highlight=False)
    console.print("medians (least to most), in seconds")
    for name, each in spent.items():
        processor, wall = Summary.of([one.cpu_s for one in each]), Summary.of([one.wall_s for one in each])
        console.print(f"{name}: processor {processor.text(1)}, in all {wall.text(1)}")


if __name__ == "__main__":
    sys.exit(main())
