"""A label or feature that is not what its source declares ends the run, on each trainer, cluster and kind of source."""

from __future__ import annotations

import pytest
from wrong_data import BAD_ROW, LAYER

from psrun.errors import ConfigError, DataError, TrainingError

OWN = ("model=dense", "~model.hidden_units", "model._target_=wrong_data.model", "~data.num_train_examples",
       "~data.num_eval_examples", "~data.noise", "~data.num_features", "data.global_batch_size=16",
       "trainer.epochs=1", "trainer.steps_per_epoch=26")  # fmt: skip
KERAS3 = "model._target_=wrong_data.model_of_keras3"
NONE = "cluster=none"
WORKERS = "cluster=inprocess"


def of(kind: str, **options: object) -> list[str]:
    return [f"data._target_=wrong_data.{kind}", *(f"+data.{name}={value}" for name, value in options.items())]


LABEL = {"wrong": "label", "value": 2.0}


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("pieces", "place"),
    [
        ([*of("Arrays", **LABEL), NONE], f"training example {BAD_ROW}"),
        ([*of("Streams", **LABEL), NONE, "trainer=fit"], r"a batch \(training\)"),
        ([*of("Streams", **LABEL), WORKERS], r"a batch \(training\)"),
        ([*of("Streams", **LABEL, part="evaluation"), NONE], f"evaluation example {BAD_ROW}"),
        ([*of("Arrays", **LABEL, part="evaluation"), WORKERS, "evaluation=exact"], f"evaluation example {BAD_ROW}"),
        (
            [*of("Streams", **LABEL, part="evaluation"), WORKERS, "trainer=fit", "evaluation=exact"],
            f"evaluation example {BAD_ROW}",
        ),
    ],
)
def test_a_wrong_label_ends_the_run_with_its_value_and_its_place(train, pieces, place):
    with pytest.raises(DataError, match=rf"(Arrays|Streams): the label is 2 in .*{place}, but must be 0 or 1"):
        train(*OWN, *pieces)


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([NONE], "the id 2148"),
        pytest.param([WORKERS, KERAS3], "the id 2148", marks=pytest.mark.part("keras3")),
        ([WORKERS, "partitioner=fixed_shards"], "an id"),
    ],
)
def test_an_id_outside_of_a_table_names_layer_and_feature(train, pieces, shown):
    given = of("Arrays", wrong="item", value=2148)
    with pytest.raises(TrainingError, match=rf"{LAYER} \(feature item\) got {shown} outside of its table of 10 rows"):
        train(*OWN, *given, *pieces)


@pytest.mark.inprocess
def test_a_feature_that_is_not_a_number_ends_evaluations_and_predictions(train, predict):
    _, folder = train(*OWN, *of("Arrays"), NONE)
    given = [*OWN, *of("Streams", wrong="x", value="nan", part="evaluation"), NONE]
    expected = (
        rf"Streams: the feature x is nan in evaluation example {BAD_ROW}; declare Feature\(\.\.\., nullable=True\)"
    )
    with pytest.raises(DataError, match=expected):
        predict(folder, *given)
    with pytest.raises(DataError, match=expected):
        train(*given)


def test_predictions_take_and_refuse_what_a_training_does(train, predict, evaluate):
    _, folder = train(*OWN, *of("Arrays"), NONE)
    predict(folder, *OWN, *of("Streams", x_type="float64", part="evaluation"), NONE)
    with pytest.raises(ConfigError, match="Streams: the feature x is string in the batches, but declared as float32"):
        predict(folder, *OWN, *of("Streams", x_type="S", part="evaluation"), NONE)
    outside = [*OWN, *of("Streams", wrong="item", value=2148, part="evaluation")]
    expected = rf"{LAYER} \(feature item\) got the id 2148 outside of its table of 10 rows"
    with pytest.raises(DataError, match=expected):
        predict(folder, *outside, NONE)
    with pytest.raises(TrainingError, match=expected):
        evaluate(folder, *outside)


def test_labels_that_are_booleans_are_trained_on_and_evaluated(train):
    _, folder = train(*OWN, *of("Arrays", label_type="bool"), NONE, "trainer.steps_per_epoch=3")
    assert 0 < folder.stored()["evaluation"]["metrics"]["auc"] < 1
