"""Which examples are trained on, by whom, and how often."""

from __future__ import annotations

from dataclasses import replace

import counting
import numpy as np
import pytest
from outcomes import events

from psrun.checkpoint import storage
from psrun.checkpoint.storage import Store
from psrun.closures import scheduling
from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.inprocess

EXAMPLES = 200
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
    monkeypatch.setattr(scheduling, "_STEPS_TO_UNROLL_FOR", 1 if unrolled else 4000)
    pieces = counting.arguments(f"trainer={trainer}", "trainer.epochs=3", examples=EXAMPLES, batch=16)
    result, folder = train(*pieces, num_workers=num_workers)
    assert result["steps"]["applied"] == 3 * 13
    assert counting.wrong(folder.checkpoints, epochs=3) == []


@pytest.mark.thorough
def test_every_worker_reads_all(train):
    """As many steps as two passes: what comes twice and what not at all is chance."""
    steps = ("trainer.epochs=1", "trainer.steps_per_epoch=20")
    _, folder = train(*counting.arguments("data.visitation=every_worker", *steps, examples=EXAMPLES, batch=20))
    for name, values in counting.counts(folder.checkpoints).items():
        assert values.sum() == 20 * 20
        assert name == "steps" or 2 in values


@pytest.mark.thorough
def test_a_resumed_run_continues_the_pass(train):
    """The other 72 examples in five batches, the last of them smaller, and 48 of the next pass."""
    pieces = counting.arguments("trainer.steps_per_epoch=8", examples=EXAMPLES, batch=16)
    _, folder = train(*pieces, "trainer.epochs=1")
    assert applied(folder, 8) == [{0: 72, 1: 128}] * 2
    train(*pieces, "trainer.epochs=2", into=folder)
    assert applied(folder, 16) == [{1: 152, 2: 48}] * 2


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
    def pieces(batch: int) -> list[str]:
        return counting.arguments("trainer.epochs=2", examples=EXAMPLES, batch=batch)

    _, folder = train(*pieces(16), "trainer.epochs=1", "trainer.steps_per_epoch=8")
    cut_short(folder, 8)
    train(*pieces(25), into=folder)
    assert applied(folder, 16) == [{1: 72, 2: 128}] * 2
    assert len([event for event in events(folder, "warning") if "skipping the last" in event["message"]]) == 1


def applied(folder: RunFolder, step: int) -> list[dict[int, int]]:
    """How many examples were applied how often at a checkpoint, for each table."""
    counts = counting.counts(folder.checkpoints, step)
    del counts["steps"]
    return [dict(zip(*(each.tolist() for each in np.unique(values, return_counts=True)))) for values in counts.values()]


def cut_short(folder: RunFolder, steps: int) -> None:
    """Makes the whole epoch that a run did the beginning of a longer one."""
    store = Store(folder.checkpoints)
    prefix = str(store.prefix(store.steps()[-1]))
    held = storage.read_manifest(prefix)
    storage.write_manifest(prefix, replace(held, position=replace(held.position, epochs=0, steps=steps)))
