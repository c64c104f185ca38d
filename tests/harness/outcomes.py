"""What a run leaves, read as others read it, and compared with what another run leaves."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from bounds import BOUND_S
from support import SAME, variables

if TYPE_CHECKING:
    from psrun.results.run_folder import RunFolder

# Loads an export where neither psrun nor a Keras can be imported, and prints the predictions for features in a file.
LOADS = """
import json, sys
sys.modules["psrun"] = sys.modules["tf_keras"] = sys.modules["keras"] = None
import numpy as np
import tensorflow as tf
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
features = {name: tf.constant(values) for name, values in np.load(sys.argv[2]).items()}
print(json.dumps(serve(**features)["prediction"].numpy()[:, 0].tolist()))
"""


def events(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    """The events of a kind, in their order."""
    return [event for event in map(json.loads, folder.metrics.read_text().splitlines()) if event["event"] == kind]


def check_rebuilt(folder: Path) -> None:
    """Whether a run.json that is lost is the same once more, by the events of the run."""
    from psrun.results.run_folder import RunFolder

    file = folder / "run.json"
    text = file.read_text()
    file.unlink()
    rebuilt = RunFolder(folder).stored()
    file.write_text(text)
    assert rebuilt == json.loads(text)


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by its header."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def check_equal(held: Mapping[str, Any], expected: Mapping[str, Any], **close: float) -> None:
    """Whether all of the expected values are held, to the bit or as close as is given."""
    for name, values in expected.items():
        np.testing.assert_allclose(held[name], values, **{"rtol": 0, "atol": 0, **close}, err_msg=name)


def of_model(prefix: str) -> dict[str, np.ndarray]:
    """Model and optimizer of a checkpoint, by the names of their variables in it."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(prefix)
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(("model/", "optimizer/"))]
    return {name: reader.get_tensor(name) for name in names if "keras_api" not in name}


def check_same(one: RunFolder, other: RunFolder) -> dict[str, np.ndarray]:
    """Whether two runs have come to the same variables; returns those of the first one."""
    held = variables(one)
    check_equal(held, variables(other), **SAME)
    return held


def served(export: str | Path, features: Mapping[str, Any], folder: Path) -> list[float]:
    """The predictions of an export by another process, without psrun."""
    np.savez(folder / "features.npz", **features)
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(export), str(folder / "features.npz")], cwd="/",
        capture_output=True, text=True, timeout=BOUND_S, check=False,
        env={name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
