"""Large variables of parameter servers, created in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psrun import layers
from psrun.cluster import strategy, variable_creation
from psrun.config import choices
from psrun.optimizers.sparse import LazyAdam, SparseAdagrad
from psrun.program.build import start_afresh

pytestmark = pytest.mark.inprocess


def test_a_large_table_and_its_slots_are_filled_in_place_with_the_same_numbers(cluster_spec, monkeypatch):
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    def create_variables() -> dict[str, Any]:
        start_afresh(1)
        distribution = strategy.parameter_servers(cluster_spec[1], choices.FixedShards("fixed_shards", 2))
        with variable_creation.in_place(), distribution.strategy.scope():
            layer = layers.Embedding(20000, 40)
            layer.build(None)
            adagrad, adam = SparseAdagrad(initial_accumulator_value=0.3), LazyAdam()
            for optimizer in (adagrad, adam):
                optimizer.build(layer.trainable_variables)
        tables = {f"table {index}": shard for index, shard in enumerate(layer.embeddings.variables)}
        slots = {f"slot {index}": slot for index, slot in enumerate([*adagrad._accumulators, *adam._momentums])}
        return {**tables, **slots}

    filled = create_variables()
    monkeypatch.setattr(variable_creation, "_LARGE_BYTES", 1 << 40)
    plain = create_variables()
    assert len(filled) == 6
    for name, variable in filled.items():
        assert isinstance(variable._v, UninitializedVariable), name
        assert not isinstance(plain[name]._v, UninitializedVariable), name
        assert variable.device == plain[name].device
        np.testing.assert_array_equal(variable.numpy(), plain[name].numpy(), err_msg=name)
    assert set(np.unique(filled["slot 0"].numpy())) == {np.float32(0.3)}
    assert np.ptp(filled["table 0"].numpy()) > 0.05
