"""Serves an export with `export.tables=apart`: looks rows up with NumPy, and calls the dense part in TensorFlow.

python serve_apart.py runs/RUN/export/STEP features.npz
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from read_tables import tensors


class Table:
    """The rows of a table in files, each of which has a range of them. Another server may have each file."""

    def __init__(self, export, about):
        self.shape, self.dtype = about["shape"], about["dtype"]
        self.parts = [(part["first"], part["count"], tensors(export / part["file"])["rows"]) for part in about["files"]]

    def look_up(self, rows):
        vectors = np.empty([*rows.shape, self.shape[1]], self.dtype)
        for first, count, part in self.parts:
            here = (rows >= first) & (rows < first + count)
            vectors[here] = part[rows[here] - first]
        return vectors


def load(export):
    """A function from a batch of raw features to the outputs of the model."""
    about = json.loads((export / "assets.extra" / "psrun.json").read_text())
    tables = {name: Table(export, table) for name, table in about["tables"].items()}
    loaded = tf.saved_model.load(str(export))
    rows, dense = loaded.signatures["rows"], loaded.signatures["serving_default"]
    inputs = dense.structured_input_signature[1]

    def serve(features):
        given = {name: tf.constant(values) for name, values in features.items()}
        for name, places in rows(**given).items():
            table = tables[about["look_ups"][name]["table"]]
            given[name] = tf.constant(table.look_up(places.numpy()))
        return dense(**{name: given[name] for name in inputs})

    return serve


if __name__ == "__main__":
    serve = load(Path(sys.argv[1]))
    with np.load(sys.argv[2]) as features:
        for name, values in serve(features).items():
            print(name, values.numpy().tolist())
