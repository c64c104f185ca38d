"""A sweep by joblib over seeds, which benchmarks/startup.py compares with `psrun -m`: Keras' fit in two processes.

    python benchmarks/sweep_by_hand.py EPOCHS STEPS_PER_EPOCH SEED...

The model and its data are those of psrun's `embedding`. A process imports TensorFlow once and does several jobs.
"""

from __future__ import annotations

import argparse

from joblib import Parallel, delayed

NUM_PROCESSES = 2
VOCABULARY = ("avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman")
NUM_EXAMPLES = 10_000
NAMES_PER_EXAMPLE = 3
EMBEDDING_DIM = 20
BATCH_SIZE = 64


def job(seed: int, epochs: int, steps_per_epoch: int) -> float:
    """The loss of the last epoch."""
    import os

    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # the Keras that psrun uses
    import numpy as np
    import tf_keras
    from tf_keras import layers

    tf_keras.utils.set_random_seed(seed)
    ids = np.random.default_rng(1).integers(len(VOCABULARY), size=(NUM_EXAMPLES, NAMES_PER_EXAMPLE))
    labels = np.any(ids == 0, axis=1, keepdims=True).astype(np.float32)
    names = np.array(VOCABULARY, dtype=object)[ids]
    inputs = layers.Input((NAMES_PER_EXAMPLE,), dtype="string")
    lookup = layers.StringLookup(vocabulary=VOCABULARY)
    vectors = layers.Embedding(lookup.vocabulary_size(), EMBEDDING_DIM)(lookup(inputs))
    prediction = layers.Dense(1, "sigmoid")(layers.GlobalAveragePooling1D()(vectors))
    model = tf_keras.Model(inputs, prediction)
    model.compile(tf_keras.optimizers.Adagrad(0.05), "binary_crossentropy", ["AUC", "accuracy"])
    history = model.fit(names, labels, batch_size=BATCH_SIZE, epochs=epochs, steps_per_epoch=steps_per_epoch, verbose=0)
    return history.history["loss"][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("epochs", type=int)
    parser.add_argument("steps_per_epoch", type=int)
    parser.add_argument("seeds", type=int, nargs="+")
    options = parser.parse_args()
    run = delayed(job)
    Parallel(n_jobs=NUM_PROCESSES)(run(seed, options.epochs, options.steps_per_epoch) for seed in options.seeds)


if __name__ == "__main__":
    main()
