"""Embedding tables that several features share."""

from __future__ import annotations

import importlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from embeddings import WORDS, Pairs
from outcomes import check_equal, check_same
from support import run_config

from psrun.data import loading
from psrun.errors import ConfigError
from psrun.models.model import prepared
from psrun.results.run_folder import RunFolder
from psrun.roles import planner

pytestmark = pytest.mark.inprocess

SHARED = {"word": ["clicked", "bought"]}
MODELS = {"wide_deep": "_deep", "dlrm": "_rows", "two_tower": "_rows"}  # and how the names of their tables end
PIECES = (
    "data=features", "~data.num_train_examples", "~data.num_eval_examples", "data._target_=embeddings.Pairs",
    "data.global_batch_size=8", "optimizer=sparse_adagrad", "model.shared_tables={word: [clicked, bought]}",
)  # fmt: skip


def model_of(name: str, **options: Any) -> Any:
    tf_keras.backend.clear_session()  # which numbers the layers
    own = {"query_features": ["clicked", "price"]} if name == "two_tower" else {}
    return getattr(importlib.import_module(f"psrun.recsys.models.{name}"), name)(
        Pairs(), embedding_dim=4, stack=False, **own, **options
    )


@pytest.mark.parametrize(("name", "deduplicate"), [("wide_deep", None), ("dlrm", True), ("two_tower", False)])
def test_the_gradients_of_all_features_arrive_in_the_one_table(name, deduplicate):
    more = {} if deduplicate is None else {"deduplicate": deduplicate}
    shared, apart = model_of(name, shared_tables=SHARED, **more), model_of(name, **more)
    tables = {kind: f"{kind}{MODELS[name]}/embeddings:0" for kind in ("word", "clicked", "bought")}
    one = {variable.name: variable for variable in shared.network.trainable_variables}
    two = {variable.name: variable for variable in apart.network.trainable_variables}
    assert set(one) - set(two) == {tables["word"]}
    assert set(two) - set(one) == {tables["clicked"], tables["bought"]}
    for variable in two.values():
        variable.assign(one.get(variable.name, one[tables["word"]]))
    features, label = next(iter(Pairs().train(batch_size=16, seed=tf.constant(1, tf.int64))))

    def gradients(model: Any, of: Any) -> tuple[Any, dict[str, Any]]:
        with tf.GradientTape() as tape:
            prediction = model.network(model.preprocessing(features))
            loss = tf.reduce_mean((prediction - label) ** 2)
        return prediction, {n: tf.convert_to_tensor(g) for n, g in tape.gradient(loss, of).items()}

    (ours, here), (theirs, there) = gradients(shared, one), gradients(apart, two)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert np.abs(there[tables["clicked"]]).max() > 0 < np.abs(there[tables["bought"]]).max()
    there[tables["word"]] = there.pop(tables["clicked"]) + there.pop(tables["bought"])
    check_equal(there, here, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("hashed", [True, False])
def test_the_same_value_has_the_same_id_in_all_features(hashed):
    words = tf.constant([*WORDS, "unknown"])[:, tf.newaxis]
    preprocessing, num_ids = prepared(Pairs(hashed=hashed))
    ids = preprocessing({"clicked": tf.tile(words, [1, 2]), "bought": words, "price": tf.zeros([len(words), 1])})
    assert num_ids["clicked"] == num_ids["bought"] == (20 if hashed else 7)
    np.testing.assert_array_equal(ids["clicked"], np.tile(ids["bought"], [1, 2]))
    assert len(set(ids["bought"].numpy()[:, 0])) > 4


@pytest.mark.thorough
def test_a_cluster_trains_it_as_one_process_does(train, tmp_path):
    """From the same checkpoint, in which the table is whole; batches look up half of the rows again."""
    pieces = (*PIECES, "model=dlrm", "data.visitation=once")
    _, begun = train(*pieces, "cluster=none", "trainer.epochs=1")
    shutil.copytree(begun.path, tmp_path / "copy")
    _, here = train(*pieces, "cluster=none", into=RunFolder(tmp_path / "copy"))
    result, there = train(
        *pieces, "partitioner=fixed_shards", "partitioner.num_shards=2", "export.at_end=true", num_workers=1, into=begun
    )
    check_same(there, here)
    tables = {
        row["variable"] for row in result["placement"] if row["kind"] == "model" and len(row["variable_shape"]) > 1
    }
    assert {name for name in tables if "embeddings" in name} == {"word_rows/embeddings"}
    (lookup,) = result["lookups"]
    assert lookup["layer"] == "word_rows"
    assert lookup["deduplicate"] is True  # 24 ids a batch, of 6 values
    assert lookup["distinct"] <= 6 / 24 + 0.001
    serve = tf.saved_model.load(result["export"]).signatures["serving_default"]
    ((features, label),) = Pairs().evaluation(batch_size=16)
    loss = tf.keras.losses.BinaryCrossentropy()(label, serve(**features)["prediction"])
    assert float(loss) == pytest.approx(result["metrics"]["val_loss"], rel=1e-5)


@pytest.mark.thorough
def test_prefetched_rows_of_another_model_train_too(train):
    """The layer is called once a step, for both features."""
    own = ("model=two_tower", "model.query_features=[clicked,price]", "trainer.prefetch_rows=true")
    result, folder = train(*PIECES, "partitioner=fixed_shards", "trainer=fit", *own)
    assert result["steps"]["applied"] == 24
    assert "word_rows/embeddings" in {row["variable"] for row in result["placement"]}
    with pytest.raises(ConfigError, match="word_rows/embeddings"):
        train(*PIECES[:-1], "trainer.epochs=3", *own, into=folder)


def test_a_plan_counts_the_table_once_and_the_rows_of_all_features():
    plans = []
    for shared in (True, False):
        run = run_config(*(PIECES if shared else PIECES[:-1]), "model=dlrm", "model.embedding_dim=4")
        plans.append(planner.make(run, loading.load_source(run)))
    one, two = plans
    tables = [
        [shard for shard in plan.placed if "_rows/" in shard.variable and shard.kind == "model"] for plan in plans
    ]
    assert [shard.variable for shard in tables[0]] == ["word_rows/embeddings"]
    assert sum(shard.bytes for shard in tables[1]) == 2 * tables[0][0].bytes
    rows = one.traffic_by_variable["word_rows/embeddings"]
    assert rows.read_bytes == rows.pushed_bytes == 8 * 3 * (4 * 4 + 8)  # 8 examples of 3 ids, each with a row
    assert one.traffic == two.traffic
