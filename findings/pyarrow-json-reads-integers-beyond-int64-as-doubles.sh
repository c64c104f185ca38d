#!/usr/bin/env bash
# pyarrow 26.0.1: in a JSON file, one integer beyond int64 makes all integers of its column doubles, without a word.
# Seen: 2**53 + 1 is read as 2**53 if another row has 2**63; alone it is read exactly. In CSV files, too, 2**63 gives
# doubles.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1
"$folder/venv/bin/python" - <<'END'
import io

from pyarrow import csv, json

number, beyond = 2**53 + 1, 2**63
for name, read, text in (
    ("JSON", json.read_json, '{{"a": {}}}\n{{"a": {}}}\n'),
    ("CSV", csv.read_csv, "a\n{}\n{}\n"),
):
    exact = read(io.BytesIO(text.format(number, 1).encode()))["a"]
    column = read(io.BytesIO(text.format(number, beyond).encode()))["a"]
    print(name, exact.type, exact[0], column.type, int(column[0].as_py()))
    assert exact[0].as_py() == number
    assert str(column.type) == "double", column.type
    assert column[0].as_py() == 2**53, column[0]
END
