"""The tables and weights of a checkpoint in files that other frameworks read, written in pieces without TensorFlow.

A folder has a file for each embedding table, with its rows in the order of their ids and its slots beside them; a file
of all other values; and `psrun-checkpoint.json`, which describes them. For the way back, the folder `run` has what a
run needs besides values, with the index and the manifest of the checkpoint, and `others.json` the values whose types
NumPy does not have.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import shutil
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow
from pyarrow import parquet

from psrun import files
from psrun.checkpoint.bundle import Bundle
from psrun.checkpoint.storage import Contents, Manifest, Store, manifest_path
from psrun.errors import CheckpointError, ConfigError
from psrun.optimizers.formulas import formula
from psrun.results.run_folder import ABOUT, CHECKPOINTS, RunFolder

OTHERS = "others.json"
RUN = "run"
ROWS = "rows"  # of a table, beside its slots
DENSE = "dense"
TABLES = "tables"
VERSION = 1
PIECE_BYTES = 1 << 24
_COPIED_BYTES = 1 << 20  # at once: fits the cache of a processor, which is five times as fast as 32 MiB
_MAX_FILE_BYTES = 1 << 30  # of a table beside a SavedModel, whose rows several servers may share
_RATE = "/_learning_rate/"  # in the key of the learning rate of an optimizer without a schedule
_OF_TABLES = "table_optimizer"
SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A value of a checkpoint that is to be written.

    Attributes:
      key: in the checkpoint.
      shape: as it is written: a slot with one number for each row is a vector.
      column_bits: of the order of its rows in the checkpoint, see `psrun.program.embeddings.described`.
      first: the first row that is written, a multiple of 2^column_bits.
    """

    bundle: Bundle
    key: str
    shape: tuple[int, ...]
    column_bits: int = 0
    first: int = 0

    @property
    def dtype(self) -> str:
        return self.bundle.values[self.key].dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def write(self, file: IO[bytes]) -> None:
        """Writes all values in order."""
        for piece in self._pieces():
            file.write(np.ascontiguousarray(piece).data)

    def piece(self, first: int, count: int) -> np.ndarray:
        """Some rows in the order of their ids; both numbers are multiples of 2^column_bits."""
        first += self.first
        if not self.column_bits:
            return self.bundle.rows(self.key, first, count).reshape(count, *self.shape[1:])
        found: np.ndarray = np.empty((1 << self.column_bits, count >> self.column_bits, *self.shape[1:]), self.dtype)
        stored = found.reshape(*found.shape[:2], *self.bundle.values[self.key].shape[1:])
        for row, column in self.columns(first):
            self.bundle.rows(self.key, row, found.shape[1], into=stored[column])
        return found.swapaxes(0, 1).reshape(count, *self.shape[1:])

    def columns(self, first: int) -> Iterator[tuple[int, int]]:
        """The row in the checkpoint of the id `first`, a multiple of 2^column_bits, and of each id behind it.

        With each, the number of the id from `first` on, below 2^column_bits.
        """
        for column in range(1 << self.column_bits):
            yield (column * self.bundle.values[self.key].shape[0] + first) >> self.column_bits, column

    def _pieces(self) -> Iterator[np.ndarray]:
        """All values in order, in pieces of bounded size."""
        if not self.shape:
            yield self.bundle.whole(self.key)
            return
        row_bytes = max(1, self.num_bytes // max(1, self.shape[0]))
        most = piece_rows(row_bytes, self.column_bits) if self.column_bits else max(1, _COPIED_BYTES // row_bytes)
        for first in range(0, self.shape[0], most):
            yield self.piece(first, min(most, self.shape[0] - first))


def piece_rows(row_bytes: int, column_bits: int) -> int:
    """The number of rows of a piece, a multiple of 2^column_bits."""
    return max(1, PIECE_BYTES // max(1, row_bytes) >> column_bits) << column_bits


def export(store: Store, step: int, folder: Path, form: str) -> dict[str, Any]:
    """Writes a checkpoint to a new folder.

    Args:
      form: one of EXPORT_FORMATS. Of parquet are the tables only: it has no place for other values, which are in
        safetensors.

    Returns:
      What the folder's `psrun-checkpoint.json` says.

    Raises:
      ConfigError: the folder exists.
      CheckpointError: the checkpoint is damaged, has values that cannot be written, or the disk is full. The folder is
        not there then.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists: choose another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.put_whole(folder) as partly, _verified(store, step):
            (partly / TABLES).mkdir(parents=True)
            _copy_record(store, step, partly / RUN)
            return _write(store.manifest(step), Bundle(store.prefix(step)), partly, form)
    except OSError as error:
        raise CheckpointError(f"{folder} could not be written: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{store.prefix(step)} cannot be exported: {error}") from error


@contextlib.contextmanager
def _verified(store: Store, step: int) -> Iterator[None]:
    """Verifies a checkpoint in another thread while it is read in the context. Raises CheckpointError at its end.

    An interrupt does not wait for the thread, nor does the end of the process.
    """
    verification: Future[str | None] = Future()

    def verify() -> None:
        try:
            verification.set_result(store.damage(step))
        except Exception as error:
            verification.set_exception(error)

    def require_good() -> None:
        damage = verification.result()
        if damage:
            raise CheckpointError(f"{store.prefix(step)} is damaged: {damage}")

    threading.Thread(target=verify, daemon=True).start()
    try:
        yield
    except Exception:
        require_good()  # what a damaged checkpoint has led to is no news
        raise
    require_good()


def _copy_record(store: Store, step: int, to: Path) -> None:
    """Copies the record of the run, the index, the manifest and the vocabularies."""
    RunFolder(store.folder.parent).copy_record(to)
    new = Store(to / CHECKPOINTS)
    new.folder.mkdir(parents=True)
    for path in (Path(f"{store.prefix(step)}.index"), manifest_path(store.prefix(step))):
        shutil.copyfile(path, new.folder / path.name)
    if store.vocabularies.exists():
        shutil.copytree(store.vocabularies, new.vocabularies)


def _write(manifest: Manifest, bundle: Bundle, folder: Path, form: str) -> dict[str, Any]:
    contents = manifest.contents
    tables, dense = values(contents, bundle)
    about: dict[str, Any] = {"version": VERSION, "psrun": manifest.psrun, "step": manifest.step}
    about |= {"position": asdict(manifest.position), TABLES: {}}
    about |= _optimizers(contents, bundle, dense)
    for table, tensors in tables.items():
        file = f"{TABLES}/{files.file_name(table)}.{form}"
        _WRITERS[form](folder / file, tensors)
        about[TABLES][table] = {"file": file, **_ids(contents, table), **_described(tensors)}
    rest = "npz" if form == "npz" else "safetensors"
    _WRITERS[rest](folder / f"{DENSE}.{rest}", dense)
    about[DENSE] = {"file": f"{DENSE}.{rest}", **_described(dense)}
    written = {tensor.key for tensors in (dense, *tables.values()) for tensor in tensors.values()}
    others = {key: base64.b64encode(bundle.raw(key)).decode() for key in bundle.values if key not in written}
    (folder / OTHERS).write_text(json.dumps(others) + "\n", encoding="utf-8")
    (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return about


def write_rows(store: Store, step: int, tables: Mapping[str, int], folder: Path) -> dict[str, Any]:
    """Writes the rows of tables, without slots, to `folder`/tables, in files of bounded size.

    Args:
      tables: by name, the `column_bits` of their order in the checkpoint, see `psrun.program.embeddings.described`.

    Returns:
      What a description says of them, by table: shape, type and files, each with its first row and its number of rows.

    Raises:
      OSError, ValueError: they cannot be read or written.
    """
    bundle = Bundle(store.prefix(step))
    keys = store.manifest(step).contents.keys
    (folder / TABLES).mkdir()
    about: dict[str, Any] = {}
    for table, column_bits in tables.items():
        whole = _of_table(bundle, keys[f"{table}/embeddings"], column_bits)
        num_rows = whole.shape[0]
        most = max(1, _MAX_FILE_BYTES * num_rows // whole.num_bytes >> column_bits) << column_bits
        parts: list[dict[str, Any]] = []
        for first in range(0, num_rows, most):
            count = min(most, num_rows - first)
            file = f"{TABLES}/{files.file_name(table)}-{len(parts):05d}.safetensors"
            part = replace(whole, shape=(count, whole.shape[1]), first=first)
            _write_safetensors(folder / file, {ROWS: part})
            parts.append({"file": file, "first": first, "count": count})
        about[table] = {"shape": list(whole.shape), "dtype": whole.dtype, "files": parts}
    return about


def values(contents: Contents, bundle: Bundle) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """The rows and slots of each table by their names in files, and all other values that NumPy has a type for.

    Raises:
      ValueError: the index has no such value, or one of a table has another type.
    """
    missing = [key for key in contents.keys.values() if key not in bundle.values]
    if missing:
        raise ValueError(f"the index lacks {missing[0]}")
    tables, others = _divided(contents)
    is_rowwise = (contents.table_optimizer or contents.optimizer) == "RowwiseAdagrad"
    by_table = {}
    for table, names in tables.items():
        column_bits = (contents.tables or {}).get(table, {}).get("column_bits", 0)
        # Of a table with one column, the slots of other optimizers have the shape of its rows.
        has_vectors = is_rowwise or contents.model[names[ROWS]]["shape"][1] > 1
        tensors = {}
        for name, variable in names.items():
            is_vector = has_vectors and name != ROWS
            tensors[name] = _of_table(bundle, contents.keys[variable], column_bits, is_vector=is_vector)
        by_table[table] = tensors
    dense = {}
    for name in others:
        stored = bundle.values[contents.keys[name]]
        if stored.dtype:
            dense[name] = Tensor(bundle, contents.keys[name], stored.shape)
    return by_table, dense


def _optimizers(contents: Contents, bundle: Bundle, dense: Mapping[str, Tensor]) -> dict[str, Any]:
    """What is known of the optimizer, and of the one of tables: None where the optimizer updates them."""
    described: dict[str, Any] = {"optimizer": contents.optimizer, _OF_TABLES: contents.table_optimizer}
    rates = {}
    for tensor in dense.values():
        if tensor.key.startswith("optimizer/") and _RATE in tensor.key:  # callbacks may have changed it
            which = _OF_TABLES if f"{_OF_TABLES}{_RATE}" in tensor.key else "optimizer"
            rates[which] = {"learning_rate": float(bundle.whole(tensor.key))}
    for which, kind in described.items():
        constants = {**contents.constants.get(which, {}), **rates.get(which, {})}
        text = formula(kind, contents.modules.get(which, ""), constants)
        described[which] = {"class": kind, "constants": constants, "formula": text} if kind else None
    return described


def _ids(contents: Contents, table: str) -> dict[str, Any]:
    """Which ids the rows of a table belong to: row i is of id i, unless `row_order` is unknown."""
    known = (contents.tables or {}).get(table)
    if known is None or known["num_ids"] is None:
        return {"row_order": "unknown"}
    features = {}
    for name, rule in known["features"].items():
        features[name] = dict(rule)
        if "vocabulary" in rule:
            features[name]["vocabulary"] = f"{RUN}/{CHECKPOINTS}/vocabularies/{rule['vocabulary']}"
    return {"row_order": "ids", "num_ids": known["num_ids"], "oov_row": known["oov_row"], "features": features}


def _divided(contents: Contents) -> tuple[dict[str, dict[str, str]], list[str]]:
    """By table, the variables of its rows and slots by their names in files; and the names of all other values."""
    tables: dict[str, dict[str, str]] = {}
    dense = []
    for variable, spec in contents.model.items():
        table, _, last = variable.rpartition("/")
        is_described = contents.tables is None or table in contents.tables
        if is_described and last == "embeddings" and len(spec["shape"]) == 2:
            tables[table] = {ROWS: variable}
        else:
            dense.append(variable)
    for name in contents.keys:
        if name in contents.model:
            continue
        beside = max((each for each in contents.model if name.endswith(f"/{each}")), key=len, default="")
        table = beside.rpartition("/")[0]
        if beside and tables.get(table, {}).get(ROWS) == beside:
            tables[table][name.removesuffix(f"/{beside}")] = name
        else:
            dense.append(name)
    return tables, dense


def _of_table(bundle: Bundle, key: str, column_bits: int, *, is_vector: bool = False) -> Tensor:
    """Of a table or its slot; if `is_vector`, a slot with one number for each row is a vector."""
    stored = bundle.values[key]
    if not stored.dtype:
        raise ValueError(f"{key} has values of a type that NumPy does not have")
    is_vector = is_vector and stored.shape[1:] == (1,)
    return Tensor(bundle, key, stored.shape[:1] if is_vector else stored.shape, column_bits)


def _described(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {"tensors": {name: {"shape": list(each.shape), "dtype": each.dtype} for name, each in tensors.items()}}


# -- formats


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """As https://github.com/huggingface/safetensors has it; its library takes whole tensors only."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.num_bytes
        header[name] = {"dtype": SAFETENSORS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            tensor.write(file)


def _write_npz(path: Path, tensors: Mapping[str, Tensor]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                described = {"descr": np.dtype(tensor.dtype).str, "fortran_order": False, "shape": tensor.shape}
                np.lib.format.write_array_header_2_0(file, described)
                tensor.write(file)


def _write_parquet(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A row of the file for each row of the table, by its id."""
    fields = [pyarrow.field("id", pyarrow.int64())]
    for name, tensor in tensors.items():
        number = pyarrow.from_numpy_dtype(tensor.dtype)
        kind = number if len(tensor.shape) == 1 else pyarrow.list_(number, tensor.shape[1])
        fields.append(pyarrow.field(name, kind))
    schema = pyarrow.schema(fields)
    num_rows = tensors[ROWS].shape[0]
    row_bytes = sum(tensor.num_bytes for tensor in tensors.values()) // max(1, num_rows)
    most = piece_rows(row_bytes, tensors[ROWS].column_bits)
    with parquet.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for first in range(0, num_rows, most):
            count = min(most, num_rows - first)
            columns = [pyarrow.array(np.arange(first, first + count))]
            for field, tensor in zip(fields[1:], tensors.values()):
                values = pyarrow.array(tensor.piece(first, count).ravel())
                is_vector = len(tensor.shape) == 1
                columns.append(values if is_vector else pyarrow.FixedSizeListArray.from_arrays(values, type=field.type))
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


_WRITERS: Mapping[str, Callable[[Path, Mapping[str, Tensor]], None]] = {
    "safetensors": _write_safetensors,
    "npz": _write_npz,
    "parquet": _write_parquet,
}
