"""The staleness of updates: known answers for one worker, two workers, and updates that are forced in between."""

from __future__ import annotations

import delayed
import numpy as np
import pytest
from documented import ROOT, blocks
from outcomes import events
from support import STEPS, TABLED, variables

SHORT = ("evaluation=none", "checkpoint=none")


@pytest.mark.inprocess
def test_updates_of_another_worker_between_a_read_and_its_update_are_counted(train):
    """And an optimizer that knows divides its learning rate by them, and compensates the gradient."""
    result, folder = train(
        *delayed.LINEAR, "trainer=own_loop", "+trainer.late_by=5", "trainer._target_=user_code.held_back",
        "trainer.steps_per_execution=1", "trainer.epochs=1", "optimizer.staleness_aware=true",
        "optimizer.delay_compensation=0.5",
    )  # fmt: skip
    updates = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (0, 0)]
    delayed.check(variables(folder), *delayed.by_hand(updates, 0.1, late_rate=delayed.divided_rate, compensation=0.5))
    measured = result["staleness"]
    assert measured["histogram"] == [[0, 5], [5, 1]]
    assert {name: measured[name] for name in ("updates", "mean", "p50", "p95", "p99", "max")} == {
        "updates": 6, "mean": 0.8333, "p50": 0, "p95": 5, "p99": 5, "max": 5,
    }  # fmt: skip
    assert sorted(worker["histogram"] for worker in measured["by_worker"].values()) == [[[0, 5]], [[5, 1]]]
    (event,) = events(folder, "staleness")
    assert event["epoch"] == 1
    assert event["mean"] == measured["mean"]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "place",
    [pytest.param("virtual", marks=pytest.mark.part("virtual")), pytest.param("servers", marks=pytest.mark.inprocess)],
)
def test_the_rule_of_the_guide_is_the_rate_of_late_updates(train, tmp_path, monkeypatch, place):
    page = (ROOT / "docs" / "guides" / "consistency.md").read_text(encoding="utf-8")
    code = dict(blocks(page, "python"))["rules.py"]
    assert code.count("SparseAdagrad") == 2
    (tmp_path / "rules.py").write_text(code.replace("SparseAdagrad", "SparseSGD"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    pieces = [*delayed.LINEAR, "optimizer._target_=rules.Fading", "optimizer.staleness_aware=true", "trainer.epochs=1"]
    if place == "servers":
        pieces += ["trainer=own_loop", "+trainer.late_by=5", "trainer._target_=user_code.held_back",
                   "trainer.steps_per_execution=1"]  # fmt: skip
        updates = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (0, 0)]
    else:
        pieces += ["cluster=virtual", "cluster.delay=constant", "cluster.mean_delay=3", "trainer.steps_per_epoch=20",
                   "trainer=custom_loop"]  # fmt: skip
        updates = delayed.delayed(3, 20)
    _, folder = train(*pieces)
    by_hand = delayed.by_hand(updates, 0.1, late_rate=lambda rate, delay: rate * 0.5 ** (delay / 4))
    held = {name: value for name, value in variables(folder).items() if np.size(value) > 1}
    delayed.check(held, *by_hand)


@pytest.mark.thorough
@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("pieces", "histogram"),
    [
        pytest.param(("trainer=fit", "model=wide_deep"), [[0, 2 * STEPS]], marks=pytest.mark.part("recsys")),
        # Nothing that could carry the counts: a message by themselves.
        ((*TABLED, "model._target_=embeddings.table_alone"), [[0, 2 * STEPS]]),
        # Per closure of 3 steps: the rows of two, and the weights of two, are from before own updates.
        *(
            ((*TABLED, "model._target_=embeddings.model", *late), histogram)
            for late, histogram in (
                (("trainer.prefetch_rows=true",), [[0, 8], [1, 16]]),
                (("trainer.dense_sync_every=3",), [[0, 8], [1, 8], [2, 8]]),
                # The third step's rows are requested before the first two count, when their weights are pushed.
                (("trainer.dense_sync_every=2", "trainer.prefetch_rows=true"), [[0, 8], [1, 8], [2, 8]]),
            )
        ),
    ],
)
def test_with_one_worker_only_its_own_updates_are_between(train, unrolled, pieces, histogram):
    result, folder = train(*pieces, *SHORT, num_workers=1)
    assert result["staleness"]["histogram"] == histogram
    assert [event["updates"] for event in events(folder, "staleness")] == [STEPS, STEPS]
