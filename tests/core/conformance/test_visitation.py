"""Which examples are trained on, by whom, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest
from outcomes import events

from psrun.checkpoint import manifest
from psrun.checkpoint.store import Store
from psrun.closures import asynchronous_steps
from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.inprocess

COUNTED = (
    "~model.embedding_dim", "model._target_=example_ids.model", "~data.num_train_examples", "~data.num_eval_examples",
    "data._target_=example_ids.Numbered", "evaluation=none",
)  # fmt: skip


@pytest.mark.parametrize(
    ("trainer", "num_workers", "unrolled"),
    [
        ("custom_loop", 2, True),
        pytest.param("fit", 1, False, marks=pytest.mark.thorough),
    ],
)
def test_each_example_of_an_epoch_is_trained_on_once(train, monkeypatch, trainer, num_workers, unrolled):
    """200 examples in batches of 16: the last one of a pass is smaller."""
    monkeypatch.setattr(asynchronous_steps, "_STEPS_TO_UNROLL_FOR", 1 if unrolled else 4000)
    result, _ = train(
        *COUNTED, f"trainer={trainer}", "data.visitation=once", "data.audit=true", "trainer.epochs=3",
        "trainer.steps_per_epoch=null", "data.global_batch_size=16", num_workers=num_workers,
    )  # fmt: skip
    assert result["steps"]["applied"] == 3 * 13
    assert [row["seen"] for row in result["visitation"]] == [{"0": 0, "1": 200, "2": 0, "3+": 0}] * 3
    assert [row["epoch"] for row in result["visitation"]] == [1, 2, 3]
    by_worker = result["visitation"][-1]["by_worker"]
    assert len(by_worker) == num_workers
    assert sum(own["seen"] for own in by_worker.values()) == 200


def trained_on(row: dict) -> int:
    """How many examples, each as often as it was; none more often than three times."""
    return sum(int(times[0]) * number for times, number in row["seen"].items())


@pytest.mark.thorough
def test_every_worker_reads_all(train):
    """As many steps as two passes: what comes twice and what not at all is chance."""
    result, _ = train(
        *COUNTED, "data.visitation=every_worker", "data.audit=true", "trainer.epochs=1", "trainer.steps_per_epoch=20",
        "data.global_batch_size=20",
    )  # fmt: skip
    (row,) = result["visitation"]
    assert trained_on(row) <= 400
    assert row["steps"] == 20
    assert row["seen"]["2"] > 0


@pytest.mark.thorough
def test_a_resumed_run_continues_the_pass(train):
    pieces = (*COUNTED, "data.visitation=once", "data.audit=true", "data.global_batch_size=16")
    _, folder = train(*pieces, "trainer.epochs=1", "trainer.steps_per_epoch=8")
    result, _ = train(*pieces, "trainer.epochs=2", "trainer.steps_per_epoch=8", into=folder)
    first, second = (row["seen"] for row in result["visitation"])
    assert first == {"0": 72, "1": 128, "2": 0, "3+": 0}
    # The other 72 in five batches, the last of them smaller, and 48 of the next pass, some of which are among them.
    assert first["1"] + second["1"] + 2 * second["2"] == 200 + 48


PASSES = ("data.visitation=once", "data.global_batch_size=16", "trainer.steps_per_epoch=null")


@pytest.mark.parametrize(
    ("cluster", "trainer"),
    [
        ("none", "custom_loop"),
        pytest.param("inprocess", "fit", marks=pytest.mark.thorough),
    ],
)
def test_a_pass_that_was_cut_ends_before_the_next_begins(train, monkeypatch, cluster, trainer):
    """Eight of thirteen steps are done; the metric counts the examples of an epoch that were not seen once."""
    pieces = (*COUNTED, "+data.num_eval_examples=200", *PASSES, f"cluster={cluster}", f"trainer={trainer}")
    _, folder = train(*pieces, "trainer.epochs=1", "trainer.steps_per_epoch=8")
    cut_short(folder, 8)
    result, _ = train(*pieces, "trainer.epochs=3", into=folder)
    assert result["steps"]["applied"] == 3 * 13
    assert [event["metrics"]["not_once"] for event in events(folder, "epoch")] == [72, 128, 0, 0]


@pytest.mark.thorough
def test_a_pass_that_was_begun_with_other_batches_is_left(train):
    pieces = (*COUNTED, *PASSES, "data.audit=true", "data.global_batch_size=25")
    _, folder = train(*pieces, "data.global_batch_size=16", "trainer.epochs=1", "trainer.steps_per_epoch=8")
    cut_short(folder, 8)
    result, _ = train(*pieces, "trainer.epochs=2", into=folder)
    *cut, last = (row["seen"] for row in result["visitation"])
    assert last == {"0": 0, "1": 200, "2": 0, "3+": 0}
    assert sum(row["1"] for row in cut) == 128
    assert len([event for event in events(folder, "warning") if "skipping the last" in event["message"]]) == 1


def cut_short(folder: RunFolder, steps: int) -> None:
    """Makes the whole epoch that a run did the beginning of a longer one."""
    store = Store(folder.checkpoints)
    prefix = str(store.prefix(store.steps()[-1]))
    held = manifest.read(prefix)
    manifest.write(prefix, replace(held, position=replace(held.position, epochs=0, steps=steps)))
