"""Tables and weights leave a checkpoint in files that the libraries of other frameworks read."""

from __future__ import annotations

import errno
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf
from pyarrow import parquet
from safetensors import numpy as safetensors
from support import flipped

from psrun.checkpoint import commands, exchange
from psrun.checkpoint.storage import EXPORT_FORMATS, Contents, Manifest, Position, Store
from psrun.errors import CheckpointError, ConfigError, ExitCode

pytestmark = pytest.mark.tensorflow

ROWS, DIM = 700, 3
RANDOM = np.random.default_rng(5)
TABLES = {"user": ROWS, "shop/user": 40}  # the name of one ends as that of the other
VALUES = {
    **{f"{table}/embeddings": RANDOM.normal(size=(rows, DIM)).astype(np.float32) for table, rows in TABLES.items()},
    **{f"m/{table}/embeddings": RANDOM.normal(size=(rows, DIM)).astype(np.float32) for table, rows in TABLES.items()},
    **{f"v/{table}/embeddings": RANDOM.random((rows, 1)).astype(np.float32) for table, rows in TABLES.items()},
    "dense/kernel": RANDOM.normal(size=(6, 2)).astype(np.float32),
    "m/dense/kernel": RANDOM.normal(size=(6, 2)).astype(np.float32),
    "iteration": np.array(7, np.int64),
}  # fmt: skip
CUT = ("user/embeddings", "m/user/embeddings", "v/user/embeddings")  # in two parts


def described(names):
    return {name: {"shape": list(VALUES[name].shape), "dtype": VALUES[name].dtype.name} for name in names}


@pytest.fixture
def store(tmp_path):
    """A checkpoint of the step 7."""
    names, slices, tensors = [], [], []
    for name, value in VALUES.items():
        bounds = (0, 300, len(value)) if name in CUT else (0, 0)
        for begin, end in itertools.pairwise(bounds):
            names.append(f"key of {name}")
            rows, columns = value.shape if name in CUT else (0, 0)
            slices.append(f"{rows} {columns} {begin},{end - begin}:0,{columns}" if name in CUT else "")
            tensors.append(tf.constant(value[begin:end] if name in CUT else value))
    store = Store(tmp_path / "run" / "checkpoints")
    store.make_room(7)
    tf.raw_ops.SaveV2(prefix=store.prefix(7), tensor_names=names, shape_and_slices=slices, tensors=tensors)
    model = [name for name in VALUES if not name.startswith(("m/", "v/")) and name != "iteration"]
    slots = [name for name in VALUES if name not in model]
    keys = {name: f"key of {name}" for name in VALUES}
    contents = Contents("LazyAdam", described(model), described(slots), [], keys)
    store.complete(Manifest(7, Position(1, 2), contents, "abc", saved_at="", learning_rate=0.1))
    return store


def read(file):
    """The tensors of a file by name, as its library reads them."""
    if file.suffix == ".safetensors":
        return safetensors.load_file(file)
    if file.suffix == ".npz":
        with np.load(file) as archive:
            return dict(archive)
    table = parquet.read_table(file)
    np.testing.assert_array_equal(table["id"], np.arange(len(table)))
    return {name: np.array(table[name].to_pylist(), np.float32) for name in table.column_names if name != "id"}


@pytest.mark.parametrize("form", EXPORT_FORMATS)
@pytest.mark.parametrize("piece_bytes", [64, 1 << 20])
def test_each_value_is_in_the_file_that_the_description_names(store, tmp_path, monkeypatch, form, piece_bytes):
    monkeypatch.setattr(exchange, "_PIECE_BYTES", piece_bytes)
    folder = tmp_path / "out"
    assert commands.main(["export", str(store.folder), "--to", str(folder), "--format", form]) == ExitCode.DONE
    about = json.loads((folder / exchange.ABOUT).read_text())
    assert (about["step"], about["optimizer"], about["position"]["steps"]) == (7, "LazyAdam", 2)
    found = {}
    for table, described_table in about["tables"].items():
        tensors = read(folder / described_table["file"])
        assert {name: list(value.shape) for name, value in tensors.items()} == {
            name: spec["shape"] for name, spec in described_table["tensors"].items()
        }
        found[f"{table}/embeddings"] = tensors["rows"]
        found[f"m/{table}/embeddings"] = tensors["m"]
        found[f"v/{table}/embeddings"] = tensors["v"][:, np.newaxis]  # one number for each row
    found |= read(folder / about["dense"]["file"])
    assert set(found) == set(VALUES)
    for name, value in VALUES.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype


def test_a_folder_that_exists_is_left_as_it_is(store, tmp_path):
    with pytest.raises(ConfigError, match="exists: choose another folder"):
        exchange.export(store, 7, tmp_path / "run", "npz")


def failing_on_a_full_disk(path, tensors):
    path.write_bytes(b"some of it")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_fails_leaves_no_folder(store, tmp_path, monkeypatch):
    monkeypatch.setitem(exchange._WRITERS, "npz", failing_on_a_full_disk)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match="out could not be written: No space left on device"):
        exchange.export(store, 7, tmp_path / "out", "npz")
    assert set(tmp_path.rglob("*")) == before


def test_a_damaged_checkpoint_is_not_exported(store, tmp_path):
    flipped(next(store.folder.glob("*.data-*")))
    with pytest.raises(CheckpointError, match="is damaged"):
        exchange.export(store, 7, tmp_path / "out", "npz")
    assert not (tmp_path / "out").exists()
