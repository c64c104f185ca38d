"""Mistakes with tables: each is answered by one clear message."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from psrun.errors import PsrunError

pytestmark = pytest.mark.tensorflow
ROWS = "".join(f"{n % 7},{'ab'[n % 2]},{n * 0.5},{n % 2}\n" for n in range(300))
GOOD = "k,w,x,y\n" + ROWS


def table(path: Any, **options: Any) -> Any:
    from psrun.data.table import Table

    return Table(**{"path": str(path), "label": "y", "split": 0.1, **options})


def write(folder: Path, **contents: str | bytes) -> Path:
    """Files in a folder, by name; returns the folder, or the file if it is the only one."""
    for name, content in contents.items():
        path = folder / name.replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path if len(contents) == 1 else folder


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"a_csv": GOOD.replace(",", ";")}, "has no column 'y'. The delimiter in its first row seems to be ';'; set"),
        ({"a_csv": GOOD, "b_csv": "k,w,x\n1,a,2\n"}, "b.csv differ from those of .*a.csv: it lacks 'y'"),
        ({"a_csv": GOOD, "b_csv": ""}, "b.csv is empty; remove it or replace it"),
        ({"a_csv": "x,y\n" + "".join(f"{n},1\n" for n in range(50))}, "column 'y' has one value, 1: there is nothing"),
        (
            {"a_csv": "name,y\n" + "".join(f"person {n} of them,{n % 2}\n" for n in range(50))},
            r"no column is left to learn from \(name: free text, different in each row\)",
        ),
        ({"a_csv_gz": gzip.compress(GOOD.encode())[:-20]}, "a.csv.gz cannot be read to its end: Truncated"),
        ({"a_csv": GOOD.replace("k,w", "k,k")}, "has more than one column 'k'; rename the duplicates"),
        ({"a_csv": ROWS}, r"has more than one column '0'; no header\? set data.columns"),
        ({"a_csv": "5,word,1.5\n" + "6,other,2.5\n" * 9}, r"looks like values; no header\? set data.columns"),
        ({"a_csv": "x,y\n" + "".join(f"{n},class {n % 10_000}\n" for n in range(20_000))}, "10,000 different words"),
        ({"a_csv": GOOD.replace("k,", "é,").encode("latin-1")}, "is not utf-8; set the encoding of the files, such as"),
        ({"a_csv": "x,y\n1.5,cat\n2.5,\n"}, "column 'y' has one value"),
        ({"a_xlsx": b"PK"}, "spreadsheets cannot be read; save it as CSV"),
        ({"a_json": '[{"x": 1, "y": 0}]'}, "it must have one JSON object a line"),
        ({"a_csv": 'x,y\n"1,0\n2,1\n'}, "row 2 cannot be read: unexpected end of data"),
    ],
)
def test_a_mistake_is_answered_by_one_message(tmp_path, contents, message):
    with pytest.raises(PsrunError, match=message) as raised:
        table(write(tmp_path, **contents), cache=str(tmp_path / "cache.d" / "sets"))
    assert len(str(raised.value).splitlines()) == 1


def test_what_is_odd_and_can_be_read_is_a_warning(tmp_path):
    rare = write(tmp_path, a_csv="x,y\n" + "".join(f"{n * 0.5},{int(n == 57)}\n" for n in range(200)))
    assert any("all 2" in text and "have the label 0: metrics that" in text for text in table(rare).warnings)
    lists = write(tmp_path, b_csv="tags,y\n" + "".join(f"\"['a{n % 5}', 'b']\",{n % 2}\n" for n in range(200)))
    assert any("tags has texts that look like lists" in text for text in table(lists).warnings)
    spelled = write(tmp_path, c_csv="w,y\n" + "".join(f"{('yes', 'Yes ', 'no')[n % 3]},{n % 2}\n" for n in range(90)))
    assert any("w has values that differ only in case or blanks" in text for text in table(spelled).warnings)
