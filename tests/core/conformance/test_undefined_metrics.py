"""Metrics of two classes, where an evaluation has examples of one class only."""

from __future__ import annotations

import json

import pytest
from outcomes import events
from sample_weights import Weighted, own_data

pytestmark = pytest.mark.tensorflow


class OneClass(Weighted):
    """Evaluation examples of class 0, and training examples if `train` is true."""

    def __init__(self, *, train: bool) -> None:
        super().__init__(weights="none")
        features, label = self._evaluation
        self._evaluation = (features, label * 0)
        features, label = self._train
        self._train = (features, label * 0 if train else label)


@pytest.mark.parametrize(
    ("trainer", "way", "everywhere"),
    [
        ("custom_loop", "direct", True),
        ("fit", "validation", False),
    ],
)
def test_an_undefined_metric_is_null_and_no_value_for_what_compares_it(
    train, evaluate, sidecar, tmp_path, trainer, way, everywhere
):
    callbacks = f"trainer.callbacks=[{{_target_: tf_keras.callbacks.CSVLogger, filename: {tmp_path}/log.csv}}]"
    result, folder = train(
        *own_data("cluster=none", f"trainer={trainer}", f"evaluation={way}", "trainer.epochs=3"),
        "data._target_=test_undefined_metrics.OneClass", f"+data.train={everywhere}",
        *([callbacks] if trainer == "fit" else []),
        "early_stopping.metric=val_auc", "early_stopping.mode=max", "early_stopping.patience=1",
        "checkpoint.best_metric=val_auc", "checkpoint.best_mode=max", "checkpoint.max_to_keep=9",
    )  # fmt: skip
    assert (result["metrics"]["val_auc"], result["evaluation"]["metrics"]["auc"]) == (None, None)
    assert result["metrics"]["val_accuracy"] > 0
    assert (result["metrics"]["auc"] is None) == everywhere
    assert result["steps"]["applied"] == 24
    assert result.get("best_checkpoint") is None
    warned = [event["message"].partition(":")[0] for event in events(folder, "warning")]
    assert warned == [*(["auc"] if everywhere else []), "val_auc"]
    if trainer == "custom_loop":
        pieces = own_data("data._target_=test_undefined_metrics.OneClass", "+data.train=true")
        shown = evaluate(folder, *pieces)
        folder.emit("ended", status="completed", exit_code=0)
        shown += sidecar(folder, *pieces, "checkpoint.max_to_keep=9")
        files = [json.loads(path.read_text()) for path in folder.evaluations.iterdir()]
        assert {each["mode"] for each in files} == {"direct", "sidecar"}
        assert {each["metrics"]["auc"] for each in files} == {None}
        assert shown.count("val_auc: undefined") == 2  # once each
    else:
        header = (tmp_path / "log.csv").read_text().splitlines()[0].split(",")
        assert {"accuracy", "val_accuracy"} < {*header}
        assert ("auc" in header, "val_auc" in header) == (not everywhere, False)
