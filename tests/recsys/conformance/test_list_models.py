"""Models on data with lists: how well they learn, in every way to run them, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from list_models import NUM_EVAL, Clicks, arguments
from support import run_config

from psrun.data import loading
from psrun.recsys.models.din import Attention, din
from psrun.recsys.models.wide_deep import wide_deep
from psrun.roles import planner

pytestmark = pytest.mark.tensorflow


@pytest.mark.release
def test_attention_learns_what_pooling_loses():
    """The truth has an AUC of 0.840; it depends only on the items of the target's group in the history."""
    source = Clicks(num_train=16_000, num_eval=3000, changes={"words": None, "x": None})
    options = {"embedding_dim": 8, "hidden_units": [32]}
    auc = {}
    for make, chosen in ((din, {"history": "history", "target": "item"}), (wide_deep, {})):
        tf_keras.utils.set_random_seed(1)
        model = make(source, **options, **chosen)

        def ready(features, label, preprocessing=model.preprocessing):
            return preprocessing(features), label

        model.network.compile(tf_keras.optimizers.Adam(0.01), "binary_crossentropy", [tf_keras.metrics.AUC(name="auc")])
        batches = source.train(batch_size=128, seed=tf.constant(1, tf.int64)).map(ready)
        model.network.fit(batches, steps_per_epoch=375, verbose=0)
        metrics = model.network.evaluate(source.evaluation(batch_size=500).map(ready), verbose=0, return_dict=True)
        auc[make.__name__] = metrics["auc"]
    assert auc["din"] > 0.80
    assert auc["din"] > auc["wide_deep"] + 0.03


@pytest.mark.thorough
@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("model", "pieces"),
    [
        ("din", ("trainer=custom_loop", "evaluation=exact", "trainer.prefetch_rows=true")),
        ("dlrm", ("trainer=fit", "evaluation=validation", "partitioner=fixed_shards")),
        ("wide_deep", ("trainer=custom_loop", "evaluation=distributed", "trainer.prefetch_rows=true",
                       "trainer.steps_per_execution=4")),
    ],
)  # fmt: skip
def test_models_train_on_lists(train, model, pieces):
    result, _ = train(*arguments(model, *pieces))
    assert result["steps"]["applied"] == 24
    assert np.isfinite(result["metrics"]["loss"])
    if "evaluation=distributed" in pieces:  # four batches of 16 examples or of the 5 that are left, of two workers
        assert result["evaluation"]["examples_seen"] in range(NUM_EVAL - 16, NUM_EVAL + 16)
    else:
        assert result["evaluation"]["examples_seen"] == NUM_EVAL
    names = {row["variable"] for row in result["placement"]}
    assert any(name.startswith("item_") and name.endswith("/embeddings") for name in names)
    assert not any(name.startswith(("history_rows", "history_deep")) for name in names)  # it shares the item's table


@pytest.mark.inprocess
@pytest.mark.thorough
def test_one_worker_trains_on_lists_as_one_process_does(train):
    same = arguments("din", "evaluation=direct", "model.stack=false")
    one, _ = train(*same, "cluster=none")
    # What the worker deduplicated the parameter server neither deduplicates nor sums again.
    other, _ = train(*same, "partitioner=none", "model.deduplicate=true", num_workers=1)
    assert one["metrics"]["val_loss"] == pytest.approx(other["metrics"]["val_loss"], rel=1e-3)


@pytest.mark.inprocess
@pytest.mark.thorough
def test_an_exported_model_scores_lists_as_the_run_does(train):
    _, folder = train(*arguments("din", "cluster=none", "evaluation=none", "export.at_end=true"))
    (exported,) = (path for path in (folder.path / "export").iterdir() if path.is_dir())
    serve = tf.saved_model.load(str(exported)).signatures["serving_default"]

    def scores(longest: int) -> np.ndarray:
        ids = np.full((2, longest), 59, np.int64)
        ids[0, :2] = [3, 5]
        lists = {"history": tf.constant(ids), "seconds": tf.ones([2, longest]), "words": tf.fill([2, longest], "ant")}
        lengths = {f"{name}_length": tf.constant([2, 0], tf.int64) for name in ("history", "words")}
        dense = {"item": tf.constant([[3], [4]], tf.int64), "x": tf.zeros([2, 1])}
        return serve(**lists, **lengths, **dense)["prediction"].numpy()

    np.testing.assert_allclose(scores(2), scores(7), rtol=1e-5)  # values beyond the lengths do not count


@pytest.mark.parametrize("stack", ["true", pytest.param("false", marks=pytest.mark.thorough)])
def test_a_plan_counts_the_ids_of_lists(stack):
    run = run_config(*arguments("din", f"model.stack={stack}"))
    traffic = planner.make(run, loading.load_source(run)).traffic_by_variable
    item, words = (traffic[f"{name}_rows/embeddings"].read_bytes for name in ("item", "words"))
    assert item > words > 4 * 16 * 16  # histories and words have the same lengths, and there is one item besides
    assert words > 3 * (item - words)


def test_weights_of_other_lengths_than_the_history_are_an_error():
    history, target, mask = tf.ones([2, 3, 4]), tf.ones([2, 4]), tf.sequence_mask([3, 1], 3)
    attention = Attention([5])
    weighted = attention([history, target, tf.ragged.constant([[1.0, 1.0, 1.0], [1.0]])], mask=[mask, None, None])
    assert weighted.shape == (2, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="history"):
        attention([history, target, tf.ragged.constant([[2.0], [3.0]])], mask=[mask, None, None])
