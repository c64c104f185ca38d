"""Labels that are words or other values than class numbers: read, trained on, predicted and exported by name."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import outcomes
import pytest
import tensorflow as tf
import word_labels
from rich.console import Console
from support import run_config

from psrun.errors import ConfigError, TrainingError
from psrun.roles import checkpoint_modes

OWN = ("model=dense", "model.hidden_units=[4]", "data._target_=word_labels.Labelled", "~data.num_train_examples",
       "~data.num_eval_examples", "~data.noise", "~data.num_features", "data.global_batch_size=16",
       "trainer.epochs=1", "trainer.steps_per_epoch=12")  # fmt: skip


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("values", "num_classes"),
    [(["no", "yes"], 2), (["low", "mid", "high"], 3), ([1.0, -1.0], 2)],
)
@pytest.mark.thorough
def test_an_own_source_trains_as_with_class_numbers(train, predict, values, num_classes):
    pieces = (*OWN, f"+data.num_classes={num_classes}", "cluster=none")
    names = [int(each) if isinstance(each, float) else each for each in values]
    given = (f"+data.values={values}".replace("'", ""), f"+data.label_vocabulary={names}".replace("'", ""))
    plain, _ = train(*pieces)
    named, folder = train(*pieces, *given)
    assert named["metrics"] == plain["metrics"]
    assert named["data"]["label_vocabulary"] == [str(name) for name in names]
    if num_classes == 3:
        run, *_ = train(*pieces[:-1], *given, "evaluation=exact", "trainer=fit")
        assert run["evaluation"]["examples_seen"] == 50
        predicted_by_name(predict, folder, [*pieces, *given], names)
        refused = [*pieces, given[0], "+data.label_vocabulary=[mid,low,high]", f"resume={folder.path}"]
        with pytest.raises(ConfigError, match=r"label_vocabulary: differs from the vocabulary that the run in"):
            train(*refused, into=folder)


def predicted_by_name(predict: Any, folder: Any, pieces: list[str], names: list[str]) -> None:
    """Predictions and the export of a run name the classes, and agree."""
    for form in ("csv", "tfrecord"):
        predict(folder, *pieces, f"predict.format={form}")
    printed = Console(file=io.StringIO(), width=200)
    checkpoint_modes.run_export(run_config(*pieces, "mode=export", f"resume={folder.path}"), folder, printed)
    (export,) = (folder.path / "export").iterdir()
    assert json.loads((export / "assets.extra" / "psrun.json").read_text())["label_vocabulary"] == names
    rows = outcomes.rows(folder.path / "predictions" / "12.csv")
    assert list(rows[0]) == ["label", *(f"prediction_{name}" for name in names), "class"]
    assert {row["label"] for row in rows} == set(names)
    for row in rows:
        assert float(row[f"prediction_{row['class']}"]) == max(float(row[f"prediction_{name}"]) for name in names)
    source = word_labels.Labelled(num_classes=3)
    ((features, label),) = source.evaluation(batch_size=50)
    assert [row["label"] for row in rows] == [names[index] for index in label.numpy()]
    served = tf.saved_model.load(str(export)).signatures["serving_default"](**features)
    assert [each.decode() for each in served["class"].numpy()] == [row["class"] for row in rows]
    records = tf.data.TFRecordDataset(str(folder.path / "predictions" / "12.tfrecord"))
    examples = [tf.train.Example.FromString(each.numpy()).features.feature for each in records]
    for key in ("label", "class"):
        assert [each[key].bytes_list.value[0].decode() for each in examples] == [row[key] for row in rows]
    np.testing.assert_array_equal(
        [each["prediction"].float_list.value for each in examples],
        np.array([[row[f"prediction_{name}"] for name in names] for row in rows], np.float32),
    )


@pytest.mark.inprocess
@pytest.mark.parametrize("cluster", ["none", pytest.param("inprocess", marks=pytest.mark.thorough)])
def test_a_label_that_is_not_in_the_vocabulary_ends_the_run(train, cluster):
    given = ("+data.values=[no,yes]", "+data.wrong=maybe", "+data.label_vocabulary=[no,yes]", f"cluster={cluster}")
    with pytest.raises(TrainingError, match=r"a label is not in data.label_vocabulary=\[no, yes\].*maybe"):
        train(*OWN, *given)
