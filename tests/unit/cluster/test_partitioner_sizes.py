"""The partitioners of psrun's keys cut variables within their bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrun.config import choices


@pytest.mark.tensorflow
@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(1, 3000), st.integers(1, 20), st.integers(1, 9), st.integers(4, 20_000))
def test_shards_are_as_many_as_their_sizes_allow(rows, columns, most, shard_bytes):
    import tensorflow as tf

    from psrun.cluster import partitioners

    def num_shards(partitioner):
        counts = partitioners.make(partitioner)(shape=tf.TensorShape([rows, columns]), dtype=tf.float32)
        assert counts[1] == 1
        return counts[0]

    size = 4 * rows * columns
    assert num_shards(choices.FixedShards("fixed_shards", most)) == min(most, rows)
    of_least = num_shards(choices.MinSize("min_size", min_shard_bytes=shard_bytes, max_shards=most))
    assert 1 <= of_least <= min(most, rows)
    assert (of_least - 1) * shard_bytes < size  # TensorFlow rounds up: shards may be smaller than the minimum
    of_most = num_shards(choices.MaxSize("max_size", max_shard_bytes=shard_bytes, max_shards=most))
    assert 1 <= of_most <= min(most, rows)
    assert of_most in (most, rows) or -(-rows // of_most) * 4 * columns <= max(shard_bytes, 4 * columns)
