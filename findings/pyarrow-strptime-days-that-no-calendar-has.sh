#!/usr/bin/env bash
# pyarrow 26.0.1: compute.strptime reads dates that no calendar has as other days, and a year of two digits as %Y.
# Seen: 02/30/2021 is 2021-03-02, 04/31/2021 is 2021-05-01; 1/2/98 with %Y is the year 98. Python's strptime raises
# ValueError for all three. So a wrong format is not found by trying whether all values parse.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1
"$folder/venv/bin/python" - <<'END'
import datetime

import pyarrow as pa
import pyarrow.compute as pc

texts = ["02/30/2021", "04/31/2021", "1/2/98"]
read = [value.isoformat(" ") for value in pc.strptime(pa.array(texts), "%m/%d/%Y", "s").to_pylist()]
print(dict(zip(texts, read)))
assert read == ["2021-03-02 00:00:00", "2021-05-01 00:00:00", "0098-01-02 00:00:00"], read
for text in texts:
    try:
        datetime.datetime.strptime(text, "%m/%d/%Y")
    except ValueError as error:
        print("Python:", error)
    else:
        raise AssertionError(text)
END
