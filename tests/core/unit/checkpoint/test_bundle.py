"""Values of checkpoints are read without TensorFlow as TensorFlow reads them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from psrun.checkpoint.bundle import Bundle

pytestmark = pytest.mark.tensorflow

DTYPES = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"]
SHAPES = [(), (1,), (7,), (5, 3), (4, 3, 2), (70, 1), (9000, 2), (1_100_000, 1), (0, 4)]


def values(shape, dtype):
    return np.random.default_rng(len(shape)).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def save(folder, pieces):
    """Writes slices of values by key: pairs of the slice, empty for a whole value, and its content."""
    names, slices, tensors = [], [], []
    for key, parts in pieces.items():
        for part, content in parts:
            names.append(key)
            slices.append(part)
            tensors.append(tf.constant(content))
    prefix = str(folder / "ckpt-1")
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=tensors)
    return prefix


def cut(value, *at):
    """Slices of a value along its first axis, as `SaveV2` takes them."""
    shape = " ".join(map(str, value.shape))
    bounds = [0, *at, value.shape[0]]
    pairs = []
    for begin, end in itertools.pairwise(bounds):
        rest = [f"0,{size}" for size in value.shape[1:]]
        pairs.append((f"{shape} {':'.join([f'{begin},{end - begin}', *rest])}", value[begin:end]))
    return pairs


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_values_of_any_type(tmp_path, dtype):
    written = {f"a/{dtype}/{shape}": values(shape, dtype) for shape in SHAPES[:-2]}
    bundle = Bundle(save(tmp_path, {key: [("", value)] for key, value in written.items()}))
    assert set(bundle.values) == set(written)
    for key, value in written.items():
        assert (bundle.values[key].shape, bundle.values[key].dtype) == (value.shape, dtype)
        assert bundle.values[key].num_bytes == value.nbytes
        np.testing.assert_array_equal(bundle.whole(key), value)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape and shape[0] > 3])
def test_rows_of_values_that_are_cut(tmp_path, shape):
    value = values(shape, "float32")
    middle = shape[0] // 2 + 1
    bundle = Bundle(save(tmp_path, {"cut": cut(value, 1, middle), "whole": [("", value)]}))
    assert len(bundle.values["cut"].parts) == 3
    for first, count in ((0, shape[0]), (0, 1), (1, middle), (middle - 1, 2), (shape[0] - 1, 1), (2, 0)):
        for key in bundle.values:
            np.testing.assert_array_equal(bundle.rows(key, first, count), value[first : first + count])


def test_an_index_of_many_blocks_and_a_text(tmp_path):
    written = {f"model/layer/{number}/kernel": values((2, 3), "float32") + number for number in range(3000)}
    pieces = {key: [("", value)] for key, value in written.items()}
    bundle = Bundle(save(tmp_path, {**pieces, "graph": [("", "text")]}))
    assert bundle.values["graph"].dtype == ""
    for key, value in written.items():
        np.testing.assert_array_equal(bundle.whole(key), value)


def test_a_value_that_is_cut_along_another_axis_is_an_error(tmp_path):
    value = values((4, 6), "float32")
    pieces = [("4 6 0,4:0,2", value[:, :2]), ("4 6 0,4:2,4", value[:, 2:])]
    with pytest.raises(ValueError, match="cut along another axis"):
        Bundle(save(tmp_path, {"columns": pieces})).whole("columns")


def test_rows_that_are_not_there_are_an_error(tmp_path):
    value = values((4, 6), "float32")
    bundle = Bundle(save(tmp_path, {"some": cut(value, 2)[:1]}))
    with pytest.raises(ValueError, match="has 2 of the rows 0 to 4"):
        bundle.whole("some")
    with pytest.raises(ValueError, match="has 0 of the rows 5 to 6"):
        bundle.rows("some", 5, 1)


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-9], lambda data: b"\xff" * 60 + data[60:]])
def test_a_damaged_index_is_an_error(tmp_path, damage):
    prefix = save(tmp_path, {"value": [("", values((5, 3), "float32"))]})
    file = tmp_path / "ckpt-1.index"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match="index"):
        Bundle(prefix)
