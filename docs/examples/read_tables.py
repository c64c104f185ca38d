"""Reads tables, slots and weights that psrun wrote as safetensors, with NumPy alone.

python read_tables.py FOLDER      # of `psrun checkpoint export RUN --to FOLDER`
"""

import json
import sys
from pathlib import Path

import numpy as np

DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def tensors(file, mode="r"):
    """The tensors of a file by name, mapped into memory: what is not used is not read.

    With the mode "r+", an assignment such as `tensors(file, "r+")["rows"][:] = values` writes into the file.
    """
    if Path(file).suffix != ".safetensors":
        raise SystemExit(f"{file} is no safetensors: read npz with numpy.load, and parquet with pyarrow")
    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    data = np.memmap(file, np.uint8, mode, offset=8 + size)
    found = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        found[name] = data[begin:end].view(DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    return found


def read(folder, mode="r"):
    """The description of a checkpoint, its tables by name ("rows" and slots), and all other values by name.

    Row i of a table is of the id i. `about["optimizer"]` has the class, the constants and the formula, and so has
    `about["table_optimizer"]` if tables have another one; else it is None.
    """
    folder = Path(folder)
    about = json.loads((folder / "psrun-checkpoint.json").read_text())
    tables = {name: tensors(folder / table["file"], mode) for name, table in about["tables"].items()}
    return about, tables, tensors(folder / about["dense"]["file"], mode)


if __name__ == "__main__":
    about, tables, dense = read(sys.argv[1])
    print("step", about["step"], about["optimizer"], about["table_optimizer"])
    for name, table in tables.items():
        print(name, {tensor: values.shape for tensor, values in table.items()})
    for name, values in dense.items():
        print(name, values.shape)
