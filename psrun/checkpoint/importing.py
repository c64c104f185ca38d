"""A checkpoint from a folder that `psrun checkpoint export` wrote, with the values that its files have by now."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import math
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from pyarrow import compute, parquet

from psrun import __version__, files
from psrun.checkpoint import exchange
from psrun.checkpoint.bundle import Bundle, Stored, strings
from psrun.checkpoint.exchange import DENSE, OTHERS, ROWS, RUN, SAFETENSORS, TABLES, Tensor
from psrun.checkpoint.storage import PREFIX, Manifest, Position, Store
from psrun.errors import CheckpointError, ConfigError
from psrun.results.run_folder import ABOUT, CHECKPOINTS
from psrun.tf_internals import messages
from psrun.tf_internals.checkpoints import point_to

_FILE_BYTES = 64 << 20  # of values, in one file of the checkpoint
_ITERATIONS = "optimizer/_iterations/"  # of the key of the steps of an optimizer
_DAMAGES = (  # what reading a damaged file raises, beside OSError
    ValueError, TypeError, KeyError, AttributeError, EOFError, struct.error, zipfile.BadZipFile, pa.ArrowException,
)  # fmt: skip
_DTYPES = {code: dtype for dtype, code in SAFETENSORS.items()}

Pieces = Callable[[int], Iterator[np.ndarray]]


@dataclass(frozen=True)
class Found:
    """A value in a file.

    Attributes:
      dtype: as NumPy calls it, or else the file.
      pieces: yields all rows in order, as many at once as its argument says, the last time fewer; or the value without
        axes.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: Pieces


def restore(folder: Path, run: Path) -> Manifest:
    """Makes a run folder, whose only checkpoint has the values of the files in `folder`.

    `psrun resume` continues it, if the exported checkpoint was in a run folder; else there is only the checkpoint.

    Raises:
      ConfigError: `run` exists.
      CheckpointError: a file is missing or damaged, or its values are not those of the checkpoint by their names,
        shapes and types; or the disk is full. `run` is not there then.
    """
    if run.exists():
        raise ConfigError(f"{run} exists: choose another folder")
    with _reading(folder / ABOUT):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        version = about["version"]
    if version != exchange.VERSION:
        raise CheckpointError(f"{folder / ABOUT} has the version {version}; this psrun reads {exchange.VERSION}")
    exported, bundle = _exported(folder / RUN)
    with _reading(folder / ABOUT):
        manifest = replace(exported, step=int(about["step"]), position=Position(**about["position"]), files={})
        optimizer = about["optimizer"]["class"]
        of_tables = (about["table_optimizer"] or {"class": ""})["class"]
    _check_position(manifest.position, folder / ABOUT)
    own = exported.contents
    for kind, wanted in ((optimizer, own.optimizer), (of_tables, own.table_optimizer)):
        if kind != wanted:
            message = f"has the optimizer {kind or None}; the exported checkpoint has {wanted or None}"
            raise CheckpointError(f"{folder / ABOUT} {message}")
    found = _found(folder, about, exported, bundle)
    _check_iterations(found, manifest.step, folder)
    others = _others(folder / OTHERS, bundle, {value.tensor.key for value in found})
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        with files.put_whole(run) as partly:
            shutil.copytree(folder / RUN, partly)
            store = Store(partly / CHECKPOINTS)
            store.make_room(exported.step)
            _write(found, others, store, manifest.step)
            return store.complete(replace(manifest, psrun=__version__))
    except (tf.errors.OpError, OSError) as error:
        raise CheckpointError(f"{run} could not be written: {messages.gist(str(error))}") from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """In this context a file is read. Raises CheckpointError if it cannot be read, or is damaged."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename or path} is missing") from error
    except (OSError, *_DAMAGES) as error:
        if isinstance(error, OSError) and error.strerror:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {reason}") from error


def _check_position(position: Position, path: Path) -> None:
    """Raises CheckpointError if a count of the position is none."""
    for name in ("epochs", "steps", "scheduled", "batch", "stream"):
        count = getattr(position, name)
        is_absent = count is None and name in ("batch", "stream")
        if not is_absent and (type(count) is not int or count < 0):
            raise CheckpointError(f"{name} of position in {path} is {count!r}, must be a whole number from 0 on")


def _exported(run: Path) -> tuple[Manifest, Bundle]:
    """The manifest and the index of the checkpoint that was exported."""
    store = Store(run / CHECKPOINTS)
    with _reading(store.folder):
        if len(store.steps()) != 1:
            raise FileNotFoundError
        (step,) = store.steps()
        manifest = store.manifest(step)
        for table in (manifest.contents.tables or {}).values():
            for rule in table["features"].values():
                if "vocabulary" in rule:
                    (store.vocabularies / rule["vocabulary"]).stat()
        return manifest, Bundle(store.prefix(step))


# -- values


@dataclass(frozen=True)
class _Value:
    """A value of the checkpoint, and its file.

    Attributes:
      tensor: as it was exported, without its values.
    """

    path: Path
    name: str
    tensor: Tensor
    found: Found


def _found(folder: Path, about: Mapping[str, Any], manifest: Manifest, bundle: Bundle) -> list[_Value]:
    """All values in files. Raises CheckpointError if they are not those that were exported."""
    with _reading(folder / ABOUT):
        tables, dense = exchange.values(manifest.contents, bundle)
        paths = {table: folder / each["file"] for table, each in about[TABLES].items()}
        dense_path = folder / about[DENSE]["file"]
    _require_same(f"{folder / ABOUT}", "tables", paths, tables)
    values = []
    for path, wanted in (*((paths[table], tensors) for table, tensors in tables.items()), (dense_path, dense)):
        if path.suffix not in _READERS:
            raise CheckpointError(f"{path} is of another format than {', '.join(_READERS)}")
        with _reading(path):
            found = _READERS[path.suffix](path)
        of_tables = manifest.contents.table_optimizer or manifest.contents.optimizer
        owner = f"the optimizer {of_tables}" if ROWS in wanted else "the model"
        _require_same(f"{path}, of {owner},", "values", found, wanted)
        for name, tensor in wanted.items():
            _require_fits(path, name, found[name], tensor)
            values.append(_Value(path, name, tensor, found[name]))
    return values


def _require_same(what: str, kind: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for problem, names in (("lacks", wanted.keys() - found.keys()), ("also has", found.keys() - wanted.keys())):
        if names:
            listed = ", ".join(sorted(names))
            raise CheckpointError(f"{what} {problem} {listed}; it must have the {kind} {', '.join(wanted)}")


def _require_fits(path: Path, name: str, found: Found, tensor: Tensor) -> None:
    if found.dtype != tensor.dtype:
        raise CheckpointError(f"{name} in {path} is of the type {found.dtype}, must be {tensor.dtype}")
    if found.shape == tensor.shape:
        return
    if tensor.shape and found.shape[1:] == tensor.shape[1:]:
        problem = f"has {found.shape[0]} rows, must have {tensor.shape[0]}"
    else:
        problem = f"has the shape {list(found.shape)}, must have {list(tensor.shape)}"
    raise CheckpointError(f"{name} in {path} {problem}")


def _check_iterations(found: list[_Value], step: int, folder: Path) -> None:
    """Raises CheckpointError if the steps of the optimizer are not the step of the checkpoint."""
    for value in found:
        if value.tensor.key.startswith(_ITERATIONS):
            with _reading(value.path):
                (iterations,) = value.found.pieces(1)
            if int(iterations) != step:
                message = f"{value.name} in {value.path} is {int(iterations)}, and step in {folder / ABOUT} is {step}"
                raise CheckpointError(f"{message}; write the same number to both")


def _others(path: Path, bundle: Bundle, elsewhere: set[str]) -> dict[str, tf.Tensor]:
    """By key, the values that are not `elsewhere`."""
    with _reading(path):
        raw = json.loads(path.read_text(encoding="utf-8"))
        _require_same(str(path), "values", raw, dict.fromkeys(bundle.values.keys() - elsewhere))
        return {key: _tensor(bundle.values[key], base64.b64decode(text)) for key, text in raw.items()}


def _tensor(stored: Stored, raw: bytes) -> tf.Tensor:
    dtype = tf.as_dtype(stored.code)
    if dtype == tf.string:
        return tf.reshape(tf.constant(strings(raw, math.prod(stored.shape)), dtype), stored.shape)
    return tf.constant(np.frombuffer(raw, dtype.as_numpy_dtype).reshape(stored.shape), dtype)


# -- the checkpoint


def _write(found: list[_Value], others: Mapping[str, tf.Tensor], store: Store, step: int) -> None:
    """Writes TensorFlow's files of the checkpoint."""
    with tempfile.TemporaryDirectory(prefix=".", dir=store.folder) as scratch:
        writer = _Writer(Path(scratch))
        for key, tensor in others.items():
            writer.add(key, "", tensor)
        for value in found:
            for first, rows in _in_order(value, Path(scratch)):
                writer.add_rows(value.tensor, first, rows)
        writer.merge(store.prefix(step))
    point_to(str(store.folder.resolve()), f"{PREFIX}-{step}", [f"{PREFIX}-{step}"])


def _in_order(value: _Value, scratch: Path) -> Iterator[tuple[int, np.ndarray]]:
    """Rows in the order of the checkpoint, and the number of the first: see `Tensor.columns`."""
    tensor = value.tensor
    row_bytes = tensor.num_bytes // max(1, math.prod(tensor.shape[:1]))
    most = exchange.piece_rows(row_bytes, tensor.column_bits)
    if not tensor.column_bits:
        yield from _numbered(value, most)
        return
    # The rows of neighbouring ids are far apart: a file takes them, which is then read in order.
    with (scratch / "rows").open("wb") as file:
        for first, rows in _numbered(value, most):
            columns = rows.reshape(-1, 1 << tensor.column_bits, *rows.shape[1:]).swapaxes(0, 1).copy()
            for row, column in tensor.columns(first):
                file.seek(row * row_bytes)
                file.write(columns[column].data.cast("B"))
    in_order = functools.partial(_pieces_of_file, scratch / "rows", 0, tensor.dtype, tensor.shape)
    yield from _numbered(replace(value, found=replace(value.found, pieces=in_order)), most)


def _numbered(value: _Value, most: int) -> Iterator[tuple[int, np.ndarray]]:
    """Rows in the order of the file, and the number of the first."""
    first = 0
    with _reading(value.path):
        for rows in value.found.pieces(most):
            yield first, rows
            first += len(rows) if rows.ndim else 1


class _Writer:
    """Writes a checkpoint in parts of bounded size, each of them a file, and merges them.

    Args:
      folder: for the parts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[str] = []
        self._pending: list[tuple[str, str, tf.Tensor]] = []
        self._pending_bytes = 0

    def add_rows(self, tensor: Tensor, first: int, rows: np.ndarray) -> None:
        """Adds the rows of a value from the row `first` on, or all of it."""
        shape = tensor.bundle.values[tensor.key].shape
        stored = tf.constant(rows.reshape(rows.shape[:1] + shape[1:]))
        where = ""
        if stored.shape != shape:
            extents = [f"{first},{len(rows)}", *(f"0,{size}" for size in shape[1:])]
            where = f"{' '.join(map(str, shape))} {':'.join(extents)}"
        self.add(tensor.key, where, stored)

    def add(self, key: str, where: str, tensor: tf.Tensor) -> None:
        """Adds a value, or the slice of it that TensorFlow writes as `where`."""
        self._pending.append((key, where, tensor))
        self._pending_bytes += tensor.shape.num_elements() * tensor.dtype.size
        if self._pending_bytes >= _FILE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        keys, slices, tensors = zip(*self._pending)
        self._parts.append(str(self._folder / str(len(self._parts))))
        tf.raw_ops.SaveV2(prefix=self._parts[-1], tensor_names=keys, shape_and_slices=slices, tensors=tensors)
        self._pending = []
        self._pending_bytes = 0

    def merge(self, prefix: str) -> None:
        self._flush()
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=self._parts, destination_prefix=prefix)


# -- formats


def _read_safetensors(path: Path) -> dict[str, Found]:
    size = path.stat().st_size
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(min(header_bytes, size)))
    found = {}
    for name, each in header.items():
        if name == "__metadata__":
            continue
        dtype = _DTYPES.get(each["dtype"], each["dtype"])
        begin, end = (8 + header_bytes + offset for offset in each["data_offsets"])
        shape = tuple(each["shape"])
        if each["dtype"] in _DTYPES and end - begin != math.prod(shape) * np.dtype(dtype).itemsize:
            raise ValueError(f"{name} has {end - begin} bytes")
        if end > size:
            raise ValueError(f"the file ends within {name}")
        found[name] = Found(dtype, shape, functools.partial(_pieces_of_file, path, begin, dtype, shape))
    return found


def _pieces_of_file(path: Path, offset: int, dtype: str, shape: tuple[int, ...], most: int) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        file.seek(offset)
        yield from _pieces_of_stream(file, np.dtype(dtype), shape, most)


def _pieces_of_stream(file: IO[bytes], dtype: np.dtype, shape: tuple[int, ...], most: int) -> Iterator[np.ndarray]:
    count = shape[0] if shape else 1
    for first in range(0, max(1, count), most):
        piece_shape = (min(most, count - first), *shape[1:]) if shape else ()
        size = math.prod(piece_shape) * dtype.itemsize
        raw = file.read(size)
        if len(raw) != size:
            raise ValueError("it ends before its values do")
        yield np.frombuffer(raw, dtype).reshape(piece_shape).astype(dtype.name, copy=False)


def _read_npz(path: Path) -> dict[str, Found]:
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                shape, by_columns, dtype = _npy_header(file)
            if by_columns:
                raise ValueError(f"{name} is stored by columns; write numpy.ascontiguousarray of it")
            found[name.removesuffix(".npy")] = Found(dtype.name, shape, functools.partial(_pieces_of_npz, path, name))
    return found


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    if np.lib.format.read_magic(file) == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _pieces_of_npz(path: Path, name: str, most: int) -> Iterator[np.ndarray]:
    with zipfile.ZipFile(path) as archive, archive.open(name) as file:
        shape, _, dtype = _npy_header(file)
        yield from _pieces_of_stream(file, dtype, shape, most)
        file.read(1)  # at its end the archive compares the checksum


def _read_parquet(path: Path) -> dict[str, Found]:
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        num_rows = file.metadata.num_rows
        if "id" not in schema.names:
            raise ValueError("it has no column id")
        found = {}
        for field in schema:
            if field.name == "id":
                continue
            number = getattr(field.type, "value_type", field.type)
            dtype = np.dtype(number.to_pandas_dtype()).name if pa.types.is_primitive(number) else str(number)
            shape: tuple[int, ...] = (num_rows,)
            if number is not field.type:
                first = next(file.iter_batches(1, columns=[field.name]), None)
                shape = (num_rows, len(first[0][0]) if first else getattr(field.type, "list_size", 0))
            found[field.name] = Found(dtype, shape, functools.partial(_pieces_of_parquet, path, field.name, shape))
    return found


def _pieces_of_parquet(path: Path, name: str, shape: tuple[int, ...], most: int) -> Iterator[np.ndarray]:
    """Raises ValueError if the ids are not 0, 1, 2 and so on, or if a row has another length, or none."""
    pending: list[np.ndarray] = []
    first = 0
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(most, columns=["id", name]):
            ids = batch["id"].to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(ids != np.arange(first, first + len(ids)))
            if wrong.size:
                raise ValueError(
                    f"row {first + wrong[0]} has the id {ids[wrong[0]]}; sort the rows by id, without gaps"
                )
            first += len(ids)
            pending.append(_rows_of_column(batch[name], name, shape))
            if sum(map(len, pending)) >= most:  # batches end where groups of rows do
                rows = np.concatenate(pending)
                yield rows[:most]
                pending = [rows[most:]]
    if sum(map(len, pending)):
        yield np.concatenate(pending)


def _rows_of_column(column: pa.Array, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = column
    if len(shape) == 2:
        lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
        if (lengths != shape[1]).any():
            raise ValueError(f"{name} has rows of other lengths than {shape[1]}")
        values = column.flatten()
    if column.null_count or values.null_count:
        raise ValueError(f"{name} lacks values")
    return values.to_numpy(zero_copy_only=False).reshape(-1, *shape[1:])


_READERS: Mapping[str, Callable[[Path], dict[str, Found]]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
}
