"""Tables and weights leave a checkpoint in files that the libraries of other frameworks read, and come back."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import subprocess
import threading

import numpy as np
import pyarrow
import pytest
import tensorflow as tf
from bounds import BOUND_S
from pyarrow import parquet
from safetensors import numpy as safetensors
from support import flipped, truncated

from psrun.checkpoint import commands, exchange, importing
from psrun.checkpoint.bundle import Bundle
from psrun.checkpoint.checkpoints import compare
from psrun.checkpoint.storage import EXPORT_FORMATS, Contents, Manifest, Position, Store
from psrun.errors import CheckpointError, ConfigError, ExitCode
from psrun.files import file_name

pytestmark = pytest.mark.tensorflow

ROWS, DIM, COLUMN_BITS = 704, 3, 3
RANDOM = np.random.default_rng(5)
TABLES = {"user": ROWS, "shop/user": 40}  # the name of one ends as that of the other
STEPS_KEY = "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"
RATES = {  # of the optimizer, which callbacks changed, and of one within the model
    "learning_rate": "optimizer/_learning_rate/.ATTRIBUTES/VARIABLE_VALUE",
    "discriminator/learning_rate": "model/discriminator_optimizer/_learning_rate/.ATTRIBUTES/VARIABLE_VALUE",
}
VALUES = {
    **{f"{table}/embeddings": RANDOM.normal(size=(rows, DIM)).astype(np.float32) for table, rows in TABLES.items()},
    **{f"m/{table}/embeddings": RANDOM.normal(size=(rows, DIM)).astype(np.float32) for table, rows in TABLES.items()},
    **{f"v/{table}/embeddings": RANDOM.random((rows, 1)).astype(np.float32) for table, rows in TABLES.items()},
    "dense/kernel": RANDOM.normal(size=(6, 2)).astype(np.float32),
    "m/dense/kernel": RANDOM.normal(size=(6, 2)).astype(np.float32),
    "frozen": np.array([True, False]),
    "counts": np.arange(5),
    "nothing": np.zeros((0, 4), np.float32),
    "iteration": np.array(7, np.int64),
    "learning_rate": np.array(0.25, np.float32),
    "discriminator/learning_rate": np.array(0.5, np.float32),
}  # fmt: skip
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
OTHERS = {  # with TensorFlow's types, for which NumPy has none
    "words": ([["a", ""], ["Größe", "x" * 300]], tf.string),
    "halves": ([1.5, -2.0], tf.bfloat16),
    GRAPH: (b"\n\x00", tf.string),
}
CUT = ("user/embeddings", "m/user/embeddings", "v/user/embeddings")  # in two parts
# The row in the checkpoint of each id of the table user: ids as a matrix that is read column by column.
ORDER = np.arange(ROWS).reshape(1 << COLUMN_BITS, -1).T.ravel()


def described(names):
    return {name: {"shape": list(VALUES[name].shape), "dtype": VALUES[name].dtype.name} for name in names}


def ids_of(num_ids, column_bits):
    return {"num_ids": num_ids, "oov_row": False, "column_bits": column_bits, "features": {}}


@pytest.fixture
def store(tmp_path):
    """A checkpoint of the step 7."""
    names, slices, tensors = [*OTHERS], [""] * len(OTHERS), [tf.constant(*each) for each in OTHERS.values()]
    keys = {name: f"key of {name}" for name in VALUES} | {"iteration": STEPS_KEY, **RATES, "words": "words"}
    for name, value in VALUES.items():
        bounds = (0, 300, len(value)) if name in CUT else (0, 0)
        for begin, end in itertools.pairwise(bounds):
            names.append(keys[name])
            rows, columns = value.shape if name in CUT else (0, 0)
            slices.append(f"{rows} {columns} {begin},{end - begin}:0,{columns}" if name in CUT else "")
            tensors.append(tf.constant(value[begin:end] if name in CUT else value))
    store = Store(tmp_path / "run" / "checkpoints")
    store.make_room(7)
    tf.raw_ops.SaveV2(prefix=store.prefix(7), tensor_names=names, shape_and_slices=slices, tensors=tensors)
    model = [name for name in VALUES if not name.startswith(("m/", "v/")) and name not in ("iteration", *RATES)]
    slots = [name for name in VALUES if name not in model]
    user = {**ids_of(700, COLUMN_BITS), "features": {"user": {"dtype": "string", "vocabulary": "user.jsonl"}}}
    tables = {"user": user, "shop/user": ids_of(40, 0)}
    store.write_vocabularies({"user.jsonl": ["ann", "new\nline"]})
    contents = Contents("LazyAdam", described(model), described(slots), [], keys, tables=tables)
    contents = dataclasses.replace(contents, constants={"optimizer": {"learning_rate": 0.1, "epsilon": 1e-7}})
    contents = dataclasses.replace(contents, modules={"optimizer": "psrun.optimizers.sparse"})
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


def write(file, tensors):
    """Writes tensors as another program would."""
    if file.suffix == ".safetensors":
        safetensors.save_file(tensors, file)
    elif file.suffix == ".npz":
        np.savez_compressed(file, **tensors)
    else:
        columns = {name: list(value) for name, value in tensors.items()}
        table = pyarrow.table({"id": np.arange(len(tensors["rows"])), **columns})
        parquet.write_table(table, file, row_group_size=100)


def different(one, other):
    return [row.name for row in compare(one, other) if not row.equal]


@pytest.mark.parametrize("form", EXPORT_FORMATS)
@pytest.mark.parametrize("piece_bytes", [64, 1 << 20])
def test_each_value_is_in_the_file_that_the_description_names(store, tmp_path, monkeypatch, form, piece_bytes):
    for name in ("PIECE_BYTES", "_COPIED_BYTES"):
        monkeypatch.setattr(exchange, name, piece_bytes)
    folder = tmp_path / "new" / "out"
    assert commands.main(["export", str(store.folder), "--to", str(folder), "--format", form]) == ExitCode.DONE
    about = json.loads((folder / exchange.ABOUT).read_text())
    assert (about["step"], about["position"]["steps"]) == (7, 2)
    assert about["optimizer"]["class"] == "LazyAdam"
    assert about["optimizer"]["constants"] == {"learning_rate": 0.25, "epsilon": 1e-7}
    assert "sqrt(v) + epsilon" in about["optimizer"]["formula"]
    assert about["tables"]["user"]["num_ids"] == 700
    words = folder / about["tables"]["user"]["features"]["user"]["vocabulary"]
    assert [json.loads(line) for line in words.read_text().splitlines()] == ["ann", "new\nline"]
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
        np.testing.assert_array_equal(found[name], value[ORDER] if name in CUT else value)
        assert found[name].dtype == value.dtype


def test_each_of_two_optimizers_is_described_with_its_own_learning_rate(store, tmp_path):
    manifest = store.manifest(7)
    constants = {"optimizer": {"epsilon": 1e-7}, "table_optimizer": {"learning_rate": 0.2}}
    modules = {"optimizer": "own.optimizers", "table_optimizer": "psrun.optimizers.sparse"}
    two = dataclasses.replace(manifest.contents, table_optimizer="RowwiseAdagrad", constants=constants, modules=modules)
    store.complete(dataclasses.replace(manifest, contents=two))
    about = exchange.export(store, 7, tmp_path / "out", "npz")
    assert (about["optimizer"]["class"], about["optimizer"]["constants"]) == (
        "LazyAdam",
        {"epsilon": 1e-7, "learning_rate": 0.25},
    )
    assert about["optimizer"]["formula"] is None  # a class of the same name
    assert about["table_optimizer"]["class"] == "RowwiseAdagrad"
    assert about["table_optimizer"]["constants"] == {"learning_rate": 0.2}
    assert "mean(g**2, 1)" in about["table_optimizer"]["formula"]
    back = tmp_path / "back"
    importing.restore(tmp_path / "out", back)
    assert not different(Store(back / "checkpoints").prefix(7), store.prefix(7))
    about["table_optimizer"] = None
    (tmp_path / "out" / exchange.ABOUT).write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match="optimizer None; the exported checkpoint has RowwiseAdagrad"):
        importing.restore(tmp_path / "out", tmp_path / "again")


def saved(tmp_path, values, tables, /, **contents):
    """A checkpoint of the step 1 with these values; the first one of each table is its rows."""
    store = Store(tmp_path / "checkpoints")
    store.make_room(1)
    tensors = [tf.constant(*OTHERS[GRAPH]), *map(tf.constant, values.values())]
    slices = [""] * len(tensors)
    tf.raw_ops.SaveV2(prefix=store.prefix(1), tensor_names=[GRAPH, *values], shape_and_slices=slices, tensors=tensors)
    specs = {name: {"shape": list(value.shape), "dtype": value.dtype.name} for name, value in values.items()}
    model = {f"{table}/embeddings": specs.pop(f"{table}/embeddings") for table in tables}
    others = {"optimizer": "Adagrad", "tables": tables, **contents}
    held = Contents(model=model, slots=specs, shards=[], keys={name: name for name in values}, **others)
    store.complete(Manifest(1, Position(), held, "", ""))
    return store


@pytest.mark.parametrize(
    ("contents", "width", "slot_width", "shape"),
    [
        ({"optimizer": "RowwiseAdagrad"}, 4, 1, [5]),
        ({"optimizer": "RowwiseAdagrad"}, 1, 1, [5]),
        ({"optimizer": "Adam", "table_optimizer": "RowwiseAdagrad"}, 1, 1, [5]),
        ({"optimizer": "Adagrad"}, 4, 4, [5, 4]),
        ({"optimizer": "Adagrad"}, 1, 1, [5, 1]),
        ({"optimizer": "RowwiseAdagrad", "table_optimizer": "SparseAdagrad"}, 1, 1, [5, 1]),
        ({"optimizer": "Own"}, 4, 1, [5]),
    ],
)
@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_a_slot_is_a_vector_where_it_has_one_number_for_each_row(tmp_path, form, contents, width, slot_width, shape):
    """Of a table with one column, the slots of most optimizers have the shape of the rows, as their formulas need."""
    values = {"t/embeddings": np.ones((5, width), np.float32), "a/t/embeddings": np.ones((5, slot_width), np.float32)}
    store = saved(tmp_path, values, {"t": ids_of(5, 0)}, **contents)
    about = exchange.export(store, 1, tmp_path / "out", form)
    assert about["tables"]["t"]["tensors"]["a"]["shape"] == shape
    importing.restore(tmp_path / "out", tmp_path / "back")
    assert different(store.prefix(1), Store(tmp_path / "back" / "checkpoints").prefix(1)) == []


@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_tables_with_similar_names_have_files_of_their_own(tmp_path, form):
    names = ("a/b", "a.b", "a%2Fb", "a b", "größe", "..")
    values = {f"{name}/embeddings": np.full((2, 3), number, np.float32) for number, name in enumerate(names)}
    store = saved(tmp_path, values, {name: ids_of(2, 0) for name in names})
    about = exchange.export(store, 1, tmp_path / "out", form)
    (tmp_path / "apart").mkdir()
    apart = exchange.write_rows(store, 1, dict.fromkeys(names, 0), tmp_path / "apart")
    for name in names:
        rows = values[f"{name}/embeddings"]
        np.testing.assert_array_equal(read(tmp_path / "out" / about["tables"][name]["file"])["rows"], rows)
        np.testing.assert_array_equal(read(tmp_path / "apart" / apart[name]["files"][0]["file"])["rows"], rows)
    importing.restore(tmp_path / "out", tmp_path / "back")
    assert different(store.prefix(1), Store(tmp_path / "back" / "checkpoints").prefix(1)) == []


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (None, {"t": "unknown", "place": "unknown"}),
        ({"t": ids_of(2, 0)}, {"t": "ids"}),
        ({"t": {**ids_of(2, 0), "num_ids": None}}, {"t": "unknown"}),
        ({"t": ids_of(2, 0), "place": ids_of(2, 0)}, {"t": "ids", "place": "ids"}),
        ({}, {}),
    ],
)
def test_the_tables_are_those_that_the_checkpoint_describes_where_it_does(tmp_path, tables, expected):
    """A layer of the user may have a weight of the name that tables have."""
    names = ("t/embeddings", "place/embeddings", "m/t/embeddings", "m/place/embeddings")
    values = {name: np.full((2, 3), number, np.float32) for number, name in enumerate(names)}
    store = saved(tmp_path, values, ("t", "place"), tables=tables)
    about = exchange.export(store, 1, tmp_path / "out", "npz")
    assert {name: each["row_order"] for name, each in about["tables"].items()} == expected
    dense = {name for name in names if name.split("/")[-2] not in expected}
    assert set(about["dense"]["tensors"]) == dense
    importing.restore(tmp_path / "out", tmp_path / "back")
    assert different(store.prefix(1), Store(tmp_path / "back" / "checkpoints").prefix(1)) == []


def test_a_checkpoint_of_an_earlier_version_has_rows_in_an_unknown_order_and_no_constants(store, tmp_path, capsys):
    manifest = store.manifest(7)
    earlier = dataclasses.replace(manifest.contents, tables=None, constants={})
    store.complete(dataclasses.replace(manifest, contents=earlier))
    out = tmp_path / "out"
    assert commands.main(["export", str(store.folder), "--to", str(out)]) == ExitCode.DONE
    assert "it is unknown which ids" in capsys.readouterr().out
    about = json.loads((out / exchange.ABOUT).read_text())
    assert about["tables"]["user"]["row_order"] == "unknown"
    assert about["optimizer"]["constants"] == {"learning_rate": 0.25}
    np.testing.assert_array_equal(read(out / "tables/user.safetensors")["rows"], VALUES["user/embeddings"])


def test_rows_in_several_files_are_those_of_an_export(store, tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "_MAX_FILE_BYTES", 100 * DIM * 4)
    monkeypatch.setattr(exchange, "PIECE_BYTES", 64)
    exchange.export(store, 7, tmp_path / "out", "safetensors")
    (tmp_path / "apart").mkdir()
    about = exchange.write_rows(store, 7, {"user": COLUMN_BITS, "shop/user": 0}, tmp_path / "apart")
    assert [len(table["files"]) for table in about.values()] == [8, 1]
    for table, described_table in about.items():
        parts = [read(tmp_path / "apart" / each["file"])["rows"] for each in described_table["files"]]
        ends = np.cumsum([len(part) for part in parts])
        assert [each["first"] + each["count"] for each in described_table["files"]] == ends.tolist()
        whole = read(tmp_path / "out" / "tables" / f"{file_name(table)}.safetensors")["rows"]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        assert described_table["shape"] == list(whole.shape)


def test_a_folder_that_exists_is_left_as_it_is(store, tmp_path):
    with pytest.raises(ConfigError, match="exists: choose another folder"):
        exchange.export(store, 7, tmp_path / "run", "npz")
    with pytest.raises(ConfigError, match="exists: choose another folder"):
        importing.restore(tmp_path / "out", tmp_path / "run")


@pytest.mark.parametrize("subcommand", ["export", "import"])
def test_a_target_at_a_url_is_refused(store, tmp_path, monkeypatch, capsys, subcommand):
    """It would be a folder `s3:` in the current one."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        commands.main([subcommand, str(store.folder), "--to", "s3://bucket/out"])
    assert "must be a path on a mounted disk" in capsys.readouterr().err
    assert not (tmp_path / "s3:").exists()


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


def interrupted(path, tensors):
    raise KeyboardInterrupt


def test_an_interrupt_does_not_wait_for_the_verification(store, tmp_path, monkeypatch):
    may_end = threading.Event()
    verifying = []

    def damage(step):
        verifying.append(threading.current_thread())
        may_end.wait(BOUND_S)

    monkeypatch.setattr(store, "damage", damage)
    monkeypatch.setitem(exchange._WRITERS, "npz", interrupted)
    timer = threading.Timer(BOUND_S / 10, may_end.set)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        exchange.export(store, 7, tmp_path / "out", "npz")
    assert not may_end.is_set()
    may_end.set()
    timer.cancel()
    assert not (tmp_path / "out").exists()
    (thread,) = verifying
    assert thread.daemon  # it does not hold the process
    thread.join()


# -- import


@pytest.mark.parametrize("form", EXPORT_FORMATS)
@pytest.mark.parametrize("sizes", [(64, 100), (1 << 20, 1 << 20)])
@pytest.mark.parametrize("rewritten", [False, True])
def test_what_comes_back_is_equal_bit_by_bit(store, tmp_path, monkeypatch, form, sizes, rewritten):
    monkeypatch.setattr(exchange, "PIECE_BYTES", sizes[0])
    monkeypatch.setattr(importing, "_FILE_BYTES", sizes[1])
    exchange.export(store, 7, tmp_path / "out", form)
    if rewritten:
        for file in (tmp_path / "out").rglob(f"*.{form}"):
            write(file, read(file))
    back = tmp_path / "new [1]" / "back"  # as a pattern
    assert commands.main(["import", str(tmp_path / "out"), "--to", str(back)]) == ExitCode.DONE
    new = Store(back / "checkpoints")
    assert (new.steps(), new.damage(7)) == ([7], None)
    assert different(store.prefix(7), new.prefix(7)) == []
    assert commands.main(["diff", str(store.folder), str(back)]) == ExitCode.DONE
    bundles = [Bundle(each.prefix(7)) for each in (store, new)]
    assert [bundles[0].raw(name) for name in OTHERS] == [bundles[1].raw(name) for name in OTHERS]
    assert dataclasses.replace(new.manifest(7), files={}, saved_at="") == dataclasses.replace(
        store.manifest(7), files={}, saved_at=""
    )
    assert [each.name for each in new.vocabularies.iterdir()] == ["user.jsonl"]
    remains = [each.name for each in new.folder.iterdir() if not each.name.startswith("ckpt-7.")]
    assert sorted(remains) == ["checkpoint", "vocabularies"]


def test_changed_values_are_where_their_ids_are(store, tmp_path):
    out = tmp_path / "out"
    exchange.export(store, 7, out, "npz")
    table = read(out / "tables/user.npz")
    table["rows"][11] += 1
    table["v"][11] = 5
    write(out / "tables/user.npz", table)
    dense = read(out / "dense.npz")
    dense["iteration"] += 100
    write(out / "dense.npz", dense)
    about = json.loads((out / exchange.ABOUT).read_text())
    about["step"] += 100
    about["position"]["batch"] = 107
    (out / exchange.ABOUT).write_text(json.dumps(about))
    manifest = importing.restore(out, tmp_path / "back")
    assert (manifest.step, manifest.position.batch) == (107, 107)
    new = Store(tmp_path / "back" / "checkpoints")
    assert different(store.prefix(7), new.prefix(107)) == ["iteration", "user/embeddings", "v/user/embeddings"]
    reader = tf.train.load_checkpoint(new.prefix(107))
    row = ORDER[11]
    np.testing.assert_array_equal(reader.get_tensor("key of v/user/embeddings")[row], [5])
    expected = VALUES["user/embeddings"].copy()
    expected[row] += 1
    np.testing.assert_array_equal(reader.get_tensor("key of user/embeddings"), expected)


@pytest.mark.parametrize("seed", range(6))
def test_any_table_comes_back_in_any_pieces(tmp_path, monkeypatch, seed):
    """Of any type, width and order of rows, cut anywhere."""
    random = np.random.default_rng(seed)
    column_bits, dim = int(random.integers(0, 5)), int(random.integers(1, 6))
    rows = int(random.integers(1, 40)) << column_bits
    dtype = random.choice(["float32", "float64", "int64", "int32"])
    wanted = {"t/embeddings": (rows, dim), "accumulator/t/embeddings": (rows, random.choice([1, dim]))}
    names, slices, tensors, specs = [GRAPH], [""], [tf.constant(*OTHERS[GRAPH])], {}
    for name, (_, width) in wanted.items():
        value = random.integers(-99, 99, (rows, width)).astype(dtype)
        specs[name] = {"shape": [rows, int(width)], "dtype": dtype}
        bounds = sorted({0, rows, *random.integers(0, rows, 3).tolist()})
        for begin, end in itertools.pairwise(bounds):
            names.append(name)
            slices.append(f"{rows} {width} {begin},{end - begin}:0,{width}")
            tensors.append(tf.constant(value[begin:end]))
    store = Store(tmp_path / "checkpoints")
    store.make_room(1)
    tf.raw_ops.SaveV2(prefix=store.prefix(1), tensor_names=names, shape_and_slices=slices, tensors=tensors)
    model, slots = [{name: spec} for name, spec in specs.items()]
    tables = {"t": ids_of(rows, column_bits)}
    store.complete(
        Manifest(1, Position(), Contents("X", model, slots, [], {n: n for n in wanted}, tables=tables), "", "")
    )
    for form in EXPORT_FORMATS:
        monkeypatch.setattr(exchange, "PIECE_BYTES", int(random.integers(1, 999)))
        monkeypatch.setattr(exchange, "_COPIED_BYTES", int(random.integers(1, 999)))
        monkeypatch.setattr(importing, "_FILE_BYTES", int(random.integers(1, 999)))
        exchange.export(store, 1, tmp_path / form, form)
        importing.restore(tmp_path / form, tmp_path / f"{form}-back")
        back = Store(tmp_path / f"{form}-back" / "checkpoints")
        rows_of = [Bundle(each.prefix(1)) for each in (store, back)]
        for name in wanted:
            np.testing.assert_array_equal(rows_of[0].whole(name), rows_of[1].whole(name))
        assert different(store.prefix(1), back.prefix(1)) == []


def changed_json(folder, **values):
    about = json.loads((folder / exchange.ABOUT).read_text())
    (folder / exchange.ABOUT).write_text(json.dumps(about | values))


def changed(file, **values):
    """Replaces tensors of a file; None removes one."""
    tensors = {name: value for name, value in {**read(file), **values}.items() if value is not None}
    write(file, tensors)


def with_ids(file, ids):
    table = parquet.read_table(file)
    parquet.write_table(table.set_column(0, "id", pyarrow.array(ids)), file)


ROW = np.float32(0) * np.zeros((ROWS, DIM), np.float32)
MISTAKES = {
    "rows": ("npz", lambda f, u: changed(u, rows=ROW[:650]), r"rows in .*user.npz has 650 rows, must have 704"),
    "slot": ("safetensors", lambda f, u: changed(u, v=ROW[:9, 0]), r"v in .* has 9 rows, must have 704"),
    "width": ("npz", lambda f, u: changed(u, m=ROW[:, :2]), r"m in .* has the shape \[704, 2\], must have \[704, 3\]"),
    "dense": (
        "npz",
        lambda f, u: changed(f / "dense.npz", counts=np.arange(6)),
        r"counts in .*dense.npz has 6 rows, must have 5",
    ),
    "parquet": ("parquet", lambda f, u: write(u, {"rows": ROW[:9], "m": ROW[:9], "v": ROW[:9, 0]}), "has 9 rows"),
    "dtype": ("npz", lambda f, u: changed(u, rows=ROW.astype(np.float16)), "is of the type float16, must be float32"),
    "parquet dtype": (
        "parquet",
        lambda f, u: write(u, {"rows": ROW, "m": ROW.astype(float), "v": ROW[:, 0]}),
        "m in .* is of the type float64, must be float32",
    ),
    "missing slot": (
        "npz",
        lambda f, u: changed(u, m=None),
        "of the optimizer LazyAdam, lacks m; it must have the values rows, m, v",
    ),
    "surplus slot": (
        "npz",
        lambda f, u: changed(u, exp_avg=ROW),
        "also has exp_avg; it must have the values rows, m, v",
    ),
    "surplus weight": ("npz", lambda f, u: changed(f / "dense.npz", bias=ROW), "of the model, also has bias"),
    "optimizer": (
        "npz",
        lambda f, u: changed_json(f, optimizer={"class": "Lion"}),
        "has the optimizer Lion; the exported checkpoint has LazyAdam",
    ),
    "version": ("npz", lambda f, u: changed_json(f, version=9), "has the version 9; this psrun reads 1"),
    "step": (
        "npz",
        lambda f, u: changed_json(f, step=107),
        "iteration in .* is 7, and step in .* is 107; write the same number",
    ),
    "position": ("npz", lambda f, u: changed_json(f, position={"place": 1}), "psrun-checkpoint.json is damaged"),
    "count": (
        "npz",
        lambda f, u: changed_json(f, position={"epochs": "two"}),
        "epochs of position in .* is 'two', must be a whole number from 0 on",
    ),
    "negative count": ("npz", lambda f, u: changed_json(f, position={"batch": -3}), "batch of position in .* is -3"),
    "no vocabulary": (
        "npz",
        lambda f, u: (f / "run/checkpoints/vocabularies/user.jsonl").unlink(),
        "user.jsonl is missing",
    ),
    "tables": (
        "npz",
        lambda f, u: changed_json(f, tables={}),
        "lacks shop/user, user; it must have the tables user, shop/user",
    ),
    "no json": ("npz", lambda f, u: (f / exchange.ABOUT).unlink(), "psrun-checkpoint.json is missing"),
    "damaged json": ("npz", lambda f, u: truncated(f / exchange.ABOUT), "psrun-checkpoint.json is damaged"),
    "list": ("npz", lambda f, u: (f / exchange.ABOUT).write_text("[]"), "psrun-checkpoint.json is damaged"),
    "no file": ("npz", lambda f, u: u.unlink(), "user.npz is missing"),
    "another format": (
        "npz",
        lambda f, u: changed_json(f, dense={"file": "dense.pt"}),
        "dense.pt is of another format than .safetensors, .npz, .parquet",
    ),
    "no others": ("npz", lambda f, u: (f / exchange.OTHERS).unlink(), "others.json is missing"),
    "damaged others": (
        "npz",
        lambda f, u: (f / exchange.OTHERS).write_text(json.dumps({name: "8" for name in OTHERS})),
        "others.json is damaged",
    ),
    "fewer others": ("npz", lambda f, u: (f / exchange.OTHERS).write_text("{}"), "others.json lacks"),
    "no index": ("npz", lambda f, u: (f / "run/checkpoints/ckpt-7.index").unlink(), "ckpt-7.index is missing"),
    "no manifest": (
        "npz",
        lambda f, u: (f / "run/checkpoints/ckpt-7.manifest.json").unlink(),
        "checkpoints is missing",
    ),
    "damaged manifest": ("npz", lambda f, u: flipped(f / "run/checkpoints/ckpt-7.manifest.json"), "is damaged"),
    "no zip": ("npz", lambda f, u: u.write_bytes(b"PK"), "user.npz is damaged"),
    "short npz": ("npz", lambda f, u: truncated(u), "user.npz is damaged"),
    "flipped npz": ("npz", lambda f, u: flipped(u), "user.npz is damaged"),
    "short safetensors": ("safetensors", lambda f, u: truncated(u), "is damaged: .*the file ends within v"),
    "no safetensors": ("safetensors", lambda f, u: u.write_bytes(b"{}"), "is damaged"),
    "long header": ("safetensors", lambda f, u: u.write_bytes(b"\xff" * 99), "is damaged"),
    "short parquet": ("parquet", lambda f, u: truncated(u), "user.parquet is damaged"),
    "flipped parquet": ("parquet", lambda f, u: flipped(u), "user.parquet is damaged"),
    "columns": ("npz", lambda f, u: changed(u, m=np.asfortranarray(ROW)), "m.npy is stored by columns"),
    "order of ids": (
        "parquet",
        lambda f, u: with_ids(u, np.arange(ROWS)[::-1]),
        "row 0 has the id 703; sort the rows by id",
    ),
    "gap of ids": ("parquet", lambda f, u: with_ids(u, [*range(600), *range(601, ROWS + 1)]), "row 600 has the id 601"),
    "ragged": (
        "parquet",
        lambda f, u: write(u, {"rows": [*ROW[1:], ROW[0, :2]], "m": ROW, "v": ROW[:, 0]}),
        "rows has rows of other lengths",
    ),
    "missing numbers": (
        "parquet",
        lambda f, u: write(u, {"rows": ROW, "m": ROW, "v": pyarrow.array([None, *ROW[1:, 0]])}),
        "v lacks values",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_does_not_fit_is_one_sentence_and_leaves_nothing(store, tmp_path, name):
    form, break_it, message = MISTAKES[name]
    out = tmp_path / "out"
    exchange.export(store, 7, out, form)
    break_it(out, out / f"tables/user.{form}")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=message) as caught:
        importing.restore(out, tmp_path / "back")
    assert "\n" not in str(caught.value)
    assert set(tmp_path.rglob("*")) == before


@pytest.fixture
def small_disk(tmp_path):
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=28k", "psrun-test", where], check=True)
    yield where
    subprocess.run(["umount", "--lazy", where], check=True)


@pytest.mark.parametrize("free_kib", range(0, 28, 4))
def test_a_full_disk_is_one_sentence_and_leaves_nothing(store, tmp_path, small_disk, free_kib):
    exchange.export(store, 7, tmp_path / "out", "npz")
    (small_disk / "filled").write_bytes(b"." * (28 - free_kib) * 1024)
    for write_it in (
        lambda: exchange.export(store, 7, small_disk / "out", "safetensors"),
        lambda: importing.restore(tmp_path / "out", small_disk / "back"),
    ):
        with pytest.raises(CheckpointError, match=r"could not be written: .*No space left on device"):
            write_it()
        assert [each.name for each in small_disk.iterdir()] == ["filled"]
