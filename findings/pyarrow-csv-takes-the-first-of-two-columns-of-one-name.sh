#!/usr/bin/env bash
# pyarrow 26.0.1: a CSV file with two columns of one name, read with include_columns, gives the first, without a word.
# Seen: the header a,b,a and include_columns=["a"] give one column with the values of the first a; without
# include_columns there are two columns "a".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1
"$folder/venv/bin/python" - <<'END'
import io

from pyarrow import csv

text = b"a,b,a\n1,2,3\n4,5,6\n"
whole = csv.read_csv(io.BytesIO(text))
some = csv.read_csv(io.BytesIO(text), convert_options=csv.ConvertOptions(include_columns=["a"]))
print(whole.column_names, some.to_pydict())
assert whole.column_names == ["a", "b", "a"], whole.column_names
assert some.to_pydict() == {"a": [1, 4]}, some
END
