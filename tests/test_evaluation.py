"""Evaluation by psrun itself, between epochs: what is counted, and that all ways give the same numbers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from psrun.errors import ConfigError

RUN = ("trainer.epochs=1", "trainer.steps_per_epoch=5", "trainer.steps_per_execution=5", "optimizer=sgd",
       "optimizer.learning_rate=0.0001")  # fmt: skip


def counted(*overrides: str, num_examples: int = 100, batch: int = 16, data: str = "Numbered") -> list[str]:
    """A run over numbered examples."""
    return [
        "model=dense", "~model.hidden_units", "model._target_=counted.model", f"data._target_=counted.{data}",
        "~data.num_train_examples", "~data.noise", "~data.num_features", f"data.num_eval_examples={num_examples}",
        f"data.global_batch_size={batch}", *RUN, *overrides,
    ]  # fmt: skip


CASES = [
    (100, 16, "null", "Numbered"),
    (101, 7, "null", "AsOthersHaveIt"),
    (1, 4, "null", "Numbered"),  # fewer than workers
    (50, 50, "9", "Numbered"),  # fewer batches than shards
    (97, 10, "1", "AsOthersHaveIt"),
    (97, 10, "3", "Numbered"),
]


def cases() -> Iterator[Any]:
    for trainer, case in itertools.product(("custom_loop", "fit"), CASES):
        default = (trainer == "fit") == (case[0] == 101) and case[0] in (1, 101)
        yield pytest.param(trainer, *case, marks=() if default else pytest.mark.thorough)


@pytest.mark.inprocess
@pytest.mark.parametrize(("trainer", "num_examples", "batch", "num_shards", "data"), cases())
def test_exact_counts_every_example_once_and_agrees_with_one_process(
    train, trainer, num_examples, batch, num_shards, data
):
    pieces = counted(f"trainer={trainer}", num_examples=num_examples, batch=batch, data=data)
    exact, _ = train(*pieces, "evaluation=exact", f"evaluation.num_shards={num_shards}", num_workers=1)
    direct, _ = train(*pieces, "evaluation=direct", num_workers=1)
    assert exact["evaluation"]["mode"] == "exact"
    assert exact["evaluation"]["examples_seen"] == num_examples
    assert exact["metrics"]["val_not_once"] == 0
    assert exact["metrics"] == pytest.approx(direct["metrics"], rel=1e-5, nan_ok=True)


@pytest.mark.thorough
def test_distributed_sees_as_many_examples_as_it_says(train):
    result, _ = train(*counted(num_examples=200, batch=10), "evaluation=distributed", "trainer.epochs=2")
    found = result["evaluation"]
    assert (found["mode"], found["examples_seen"]) == ("distributed", 200)
    assert 0 <= result["metrics"]["val_not_once"] <= 200
    exact, _ = train(*counted(num_examples=200, batch=10), "evaluation=exact", "trainer.epochs=2")
    assert result["metrics"]["val_mean_absolute_error"] == pytest.approx(
        exact["metrics"]["val_mean_absolute_error"], rel=0.5
    )


@pytest.mark.inprocess
@pytest.mark.parametrize("trainer", ["custom_loop", pytest.param("fit", marks=pytest.mark.thorough)])
def test_all_ways_give_the_same_metrics(train, trainer):
    """AUC to 1e-6, counts to the integer; one worker, so that what is trained is the same."""
    ways = ("direct", "exact", *(("validation",) if trainer == "fit" else ()))
    pieces = ("model=wide_deep", "partitioner=fixed_shards", f"trainer={trainer}")
    direct, *others = (train(*pieces, f"evaluation={way}", num_workers=1)[0] for way in ways)
    for other in others:
        assert other["evaluation"]["examples_seen"] == direct["evaluation"]["examples_seen"] == 100
        assert other["metrics"]["val_auc"] == pytest.approx(direct["metrics"]["val_auc"], abs=1e-6)
        assert other["metrics"]["val_accuracy"] == pytest.approx(direct["metrics"]["val_accuracy"], abs=1e-7)
        assert other["metrics"]["val_loss"] == pytest.approx(direct["metrics"]["val_loss"], rel=1e-5)


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("+data.endless=true", "the evaluation data never ends"),
        ("+data.wide=true", r"evaluation examples are .*\(2,\)"),
    ],
)
def test_evaluation_data_that_will_not_do_is_told_before_training(train, option, said):
    with pytest.raises(ConfigError, match=said):
        train(*counted(data="AsOthersHaveIt"), option, "evaluation=exact")


@pytest.mark.tensorflow
def test_without_workers_exact_is_done_by_the_one_process_and_distributed_is_refused(train):
    result, _ = train(*counted("cluster=none"), "evaluation=exact")
    assert result["evaluation"]["mode"] == "exact"
    assert result["metrics"]["val_not_once"] == 0
    with pytest.raises(ConfigError, match="'distributed' needs workers"):
        train(*counted("cluster=none"), "evaluation=distributed")


@pytest.mark.thorough
def test_checkpoints_of_a_run_are_evaluated_later_on_another_cluster(psrun):
    quick = ["trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]
    first = psrun("cluster=inprocess", "partitioner=fixed_shards", "trainer.epochs=2", *quick)
    before = (first.folder / "run.json").read_bytes()
    for cluster in ("none", "inprocess"):
        done = psrun("resume=run", "mode=evaluate", "evaluation=exact", f"cluster={cluster}", "restore=20")
        assert done.code == 0, done.stderr
        assert "step 20 (exact, 100 examples)" in done.stdout
        found = json.loads((first.folder / "evaluations" / "20.json").read_text())
        (then,) = (event for event in first.events if event["event"] == "evaluation" and event["step"] == 20)
        assert found["cluster"] == cluster
        assert found["metrics"] == pytest.approx(then["metrics"], rel=1e-5)
    assert (first.folder / "run.json").read_bytes() == before
    refused = psrun("resume=run", "mode=evaluate", "cluster=local", "evaluation=none")
    assert refused.code == 2
    assert "mode=evaluate runs in one process" in refused.stderr
    assert "needs evaluation=direct, exact or distributed" in refused.stderr
