"""Exports with `export.tables=apart`: dense part and tables together predict what the whole export does, to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import list_models
import numpy as np
import pytest
import tensorflow as tf
from bounds import BOUND_S
from support import REPOSITORY, SMALL, TABLED, run_config

from psrun.checkpoint import exchange, trained_model
from psrun.checkpoint.storage import Store
from psrun.data import loading
from psrun.data.lists import length_name
from psrun.errors import ConfigError

pytestmark = pytest.mark.inprocess
thorough = pytest.mark.thorough

FEW = ("trainer.epochs=1", "trainer.steps_per_epoch=3", "evaluation=none")
KERAS3 = ("model=dense", "~model.hidden_units", "~data.num_features", "~data.num_train_examples",
          "~data.num_eval_examples", "~data.noise", "data.global_batch_size=16")  # fmt: skip
CASES = {
    "embedding": ("model=embedding", *SMALL["features"]),
    "din": list_models.arguments("din"),
    "Keras 3 with lists": (*KERAS3, "model._target_=keras3_models.lists", "data._target_=list_features.Histories"),
    "ids outside": ("model=embedding", *TABLED, "model._target_=apart_models.several",
                    "optimizer=adagrad"),
    "own kind of layer": ("model=embedding", *TABLED, "model._target_=apart_models.shifted", "optimizer=adagrad"),
}  # fmt: skip
ELSEWHERE = {"din": ("cluster=inprocess", "partitioner=fixed_shards")}  # where tables are stacked and cut

# Serves where neither psrun nor a Keras can be imported, by the example of the guide.
SERVES = """
import sys
sys.modules["psrun"] = sys.modules["tf_keras"] = sys.modules["keras"] = None
from pathlib import Path
import numpy as np
import serve_apart
outputs = serve_apart.load(Path(sys.argv[1]))(np.load(sys.argv[2]))
np.savez(sys.argv[3], **{name: values.numpy() for name, values in outputs.items()})
"""


def exported(pieces: tuple[str, ...], checkpoints: Path, to: Path, tables: str) -> Path:
    run = run_config(*pieces)
    source = loading.load_source(run)
    loaded = trained_model.load(run, source, Store(checkpoints), print, tables=tables)
    return trained_model.export(loaded, to / tables, print)


def padded(source: Any, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A batch of features as exports take it."""
    batch = {}
    for name, values in features.items():
        if not isinstance(values, tf.RaggedTensor):
            batch[name] = values.numpy()
            continue
        batch[name] = values.to_tensor().numpy()
        batch[length_name(name)] = values.row_lengths().numpy()
    wanted = trained_model.padded(source)
    return {
        name: values.astype("S") if values.dtype == object else values
        for name, values in batch.items()
        if name in wanted
    }


@pytest.mark.parametrize("case", [pytest.param(each, marks=() if each == "embedding" else thorough) for each in CASES])
def test_tables_and_dense_part_predict_as_the_whole(train, tmp_path, monkeypatch, case):
    monkeypatch.setattr(exchange, "_MAX_FILE_BYTES", 600)
    pieces = (*CASES[case], *ELSEWHERE.get(case, ("cluster=none",)), *FEW)
    result, folder = train(*pieces, "export.at_end=true", "export.tables=apart")
    apart = Path(result["export"])
    whole = exported(pieces, folder.checkpoints, tmp_path, "whole")
    source = loading.load_source(run_config(*pieces))
    features = padded(source, next(iter(source.evaluation(batch_size=7)))[0])
    np.savez(tmp_path / "features.npz", **features)
    command = [sys.executable, "-c", SERVES, str(apart), str(tmp_path / "features.npz"), str(tmp_path / "out.npz")]
    examples = str(REPOSITORY / "docs" / "examples")
    done = subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr
    served = tf.saved_model.load(str(whole)).signatures["serving_default"]
    expected = served(**{name: tf.constant(values) for name, values in features.items()})
    assert np.std(expected["prediction"]) > 0
    with np.load(tmp_path / "out.npz") as outputs:
        assert {*outputs} == {*expected}
        for name, values in expected.items():
            np.testing.assert_array_equal(outputs[name], values)
    about = json.loads((apart / "assets.extra" / "psrun.json").read_text())
    assert {each["table"] for each in about["look_ups"].values()} == {*about["tables"]}
    dense = tf.saved_model.load(str(apart)).signatures["serving_default"]
    shapes = {tuple(shape) for _, shape in tf.train.list_variables(f"{apart}/variables/variables")}
    assert not shapes & {tuple(table["shape"]) for table in about["tables"].values()}
    assert "ids" in dense.structured_input_signature[1] or case != "ids outside"  # they count as numbers, too


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (("model=embedding", *TABLED, "model._target_=apart_models.tied", "optimizer=adagrad"),
         "export.tables: is apart, but the model uses embedding/embeddings otherwise"),
        (("model=embedding", *TABLED, "model._target_=apart_models.chained", "optimizer=adagrad"),
         "export.tables: is apart, but the model computes ids from rows of first"),
        (("model=embedding", *TABLED, "model._target_=apart_models.branching", "optimizer=adagrad"),
         "export.tables: is apart, but the model looks rows of .*embedding up within a branch"),
        (("model=dense", *SMALL["regression"]), "export.tables: is apart, but the model looks nothing up"),
    ],
)  # fmt: skip
def test_a_model_that_needs_whole_tables_is_refused(train, tmp_path, pieces, message):
    _, folder = train(*pieces, "cluster=none", *FEW)
    with pytest.raises(ConfigError, match=message):
        exported(pieces, folder.checkpoints, tmp_path, "apart")
    assert not (tmp_path / "apart").exists()


@pytest.mark.parametrize(
    ("key", "others"),
    [("export.top_k", ("export.top_k=3",)), ("export.best", ("export.best=true", "evaluation=sidecar"))],
)
def test_what_needs_whole_tables_is_refused_before_a_training(key, others):
    with pytest.raises(ConfigError, match=rf"{key}: .*set export\.tables to whole"):
        run_config("model=embedding", *SMALL["features"], "export.tables=apart", *others)
