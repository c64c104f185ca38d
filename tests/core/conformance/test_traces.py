"""What a run traces: tracing takes tenths of a second, in which the workers may have nothing to do."""

from __future__ import annotations

import pytest
import tf_keras
from tensorflow.python.eager import context

from psrun.results.events import Reporter

pytestmark = pytest.mark.inprocess


def test_all_is_traced_by_the_end_of_the_first_evaluation_and_the_model_once_for_each_use(train, monkeypatch):
    num_functions = 0
    seen: list[tuple[str, int]] = []  # the kind of each event, and the functions that were traced by then
    called: list[str] = []
    add = context.Context.add_c_function
    emit = Reporter.emit
    call = tf_keras.layers.Dense.call

    def counting(self, *arguments, **options):
        nonlocal num_functions
        num_functions += 1
        return add(self, *arguments, **options)

    def noting(self, kind, **data):
        seen.append((kind, num_functions))
        return emit(self, kind, **data)

    def calling(self, inputs):
        called.append(self.name)
        return call(self, inputs)

    monkeypatch.setattr(context.Context, "add_c_function", counting)
    monkeypatch.setattr(Reporter, "emit", noting)
    monkeypatch.setattr(tf_keras.layers.Dense, "call", calling)
    train("evaluation=direct", "trainer.epochs=3", "trainer.steps_per_epoch=4", "trainer.steps_per_execution=2")
    counts = {kind: [count for each, count in seen if each == kind] for kind in ("epoch", "checkpoint", "evaluation")}
    assert [len(each) for each in counts.values()] == [3, 3, 3]
    assert 0 < counts["checkpoint"][0] <= counts["evaluation"][0]
    assert set(counts["evaluation"]) == {counts["evaluation"][0]}
    # When it is made, for its predictions, for the weights that it reads whole, for the evaluation, and for the step.
    assert called == ["prediction"] * 5
