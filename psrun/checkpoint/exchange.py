"""The tables and weights of a checkpoint in files that other frameworks read, written in pieces without TensorFlow.

A folder has a file for each embedding table, with its rows in the order of their ids and its slots beside them; a file
of all other values; and `psrun-checkpoint.json`, which describes them.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow
from pyarrow import parquet

from psrun.checkpoint.bundle import Bundle
from psrun.checkpoint.storage import Contents, Manifest, Store
from psrun.errors import CheckpointError, ConfigError

ABOUT = "psrun-checkpoint.json"
ROWS = "rows"  # of a table, beside its slots
_DENSE = "dense"
_TABLES = "tables"
_VERSION = 1
_PIECE_BYTES = 32 << 20
_SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A value of a checkpoint that is to be written.

    Attributes:
      key: in the checkpoint.
      shape: as it is written: a slot with one number for each row is a vector.
    """

    bundle: Bundle
    key: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.bundle.values[self.key].dtype

    @property
    def num_bytes(self) -> int:
        return self.bundle.values[self.key].num_bytes

    def write(self, file: IO[bytes]) -> None:
        """Writes all values in order."""
        for piece in self._pieces():
            file.write(np.ascontiguousarray(piece).data)

    def piece(self, first: int, count: int) -> np.ndarray:
        """Some rows."""
        return self.bundle.rows(self.key, first, count).reshape(count, *self.shape[1:])

    def _pieces(self) -> Iterator[np.ndarray]:
        """All values in order, in pieces of bounded size."""
        if not self.shape:
            yield self.bundle.whole(self.key)
            return
        row_bytes = max(1, self.num_bytes // max(1, self.shape[0]))
        most = max(1, _PIECE_BYTES // row_bytes)
        for first in range(0, self.shape[0], most):
            yield self.piece(first, min(most, self.shape[0] - first))


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
    damage = store.damage(step)
    if damage:
        raise CheckpointError(f"{store.prefix(step)} is damaged: {damage}")
    partly = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        (partly / _TABLES).mkdir(parents=True)
        about = _write(store.manifest(step), Bundle(store.prefix(step)), partly, form)
        partly.rename(folder)
    except OSError as error:
        raise CheckpointError(f"{folder} could not be written: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{store.prefix(step)} cannot be exported: {error}") from error
    finally:
        shutil.rmtree(partly, ignore_errors=True)
    return about


def _write(manifest: Manifest, bundle: Bundle, folder: Path, form: str) -> dict[str, Any]:
    contents = manifest.contents
    tables, dense = _divided(contents)
    about: dict[str, Any] = {"version": _VERSION, "psrun": manifest.psrun, "step": manifest.step}
    about |= {"position": asdict(manifest.position), "optimizer": contents.optimizer}
    about |= {"learning_rate": manifest.learning_rate, "tables": {}}
    for table, names in tables.items():
        tensors = {}
        for name, variable in names.items():
            tensors[name] = _tensor(bundle, contents.keys[variable], is_slot=name != ROWS)
        file = f"{_TABLES}/{table.replace('/', '.')}.{form}"
        _WRITERS[form](folder / file, tensors)
        about["tables"][table] = {"file": file, **_described(tensors)}
    rest = "npz" if form == "npz" else "safetensors"
    tensors = {name: _tensor(bundle, contents.keys[name]) for name in dense}
    _WRITERS[rest](folder / f"{_DENSE}.{rest}", tensors)
    about[_DENSE] = {"file": f"{_DENSE}.{rest}", **_described(tensors)}
    (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return about


def _divided(contents: Contents) -> tuple[dict[str, dict[str, str]], list[str]]:
    """By table, the variables of its rows and slots by their names in files; and the names of all other values."""
    tables: dict[str, dict[str, str]] = {}
    dense = []
    for variable, spec in contents.model.items():
        table, _, last = variable.rpartition("/")
        if last == "embeddings" and len(spec["shape"]) == 2:
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


def _tensor(bundle: Bundle, key: str, *, is_slot: bool = False) -> Tensor:
    stored = bundle.values[key]
    if not stored.dtype:
        raise ValueError(f"{key} has values of a type that NumPy does not have")
    is_by_row = is_slot and len(stored.shape) == 2 and stored.shape[1] == 1
    return Tensor(bundle, key, stored.shape[:1] if is_by_row else stored.shape)


def _described(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {"tensors": {name: {"shape": list(each.shape), "dtype": each.dtype} for name, each in tensors.items()}}


# -- formats


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """As https://github.com/huggingface/safetensors has it; its library takes whole tensors only."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.num_bytes
        header[name] = {"dtype": _SAFETENSORS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
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
    most = max(1, _PIECE_BYTES // max(1, row_bytes))
    with parquet.ParquetWriter(path, schema) as writer:
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
