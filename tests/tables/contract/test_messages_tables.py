"""What is said about mistakes in files, rows, features, labels and splits of tables, as the golden file has it.

More mistakes of these kinds, by their keys alone: tests/tables/unit/test_refused_tables.py.
"""

from __future__ import annotations

import gzip
import re
from typing import Any

import pyarrow as pa
import pytest
import table_files
from support import stated

from psrun.cli import command_line
from psrun.config import composition
from psrun.errors import PsrunError
from psrun.tables import commands, label_guess
from psrun.tables.profiles import Profiler

pytestmark = pytest.mark.tensorflow

ROWS = "".join(f"{n % 7},{'ab'[n % 2]},{n * 0.5},{n % 2}\n" for n in range(300))
GOOD = "k,w,x,y\n" + ROWS
# What is in the words of another library.
FOREIGN = r"(?<=: )Truncated compressed stream"
FILES: dict[str, dict[str, str | bytes]] = {
    "another delimiter": {"a.csv": GOOD.replace(",", ";")},
    "a column is lacking in the second file": {"a.csv": GOOD, "b.csv": "k,w,x\n1,a,2\n"},
    "an empty file": {"a.csv": GOOD, "b.csv": ""},
    "cut gzip": {"a.csv.gz": gzip.compress(GOOD.encode())[:-20]},
    "no header": {"a.csv": ROWS},
    "latin-1": {"a.csv": GOOD.replace("k,", "é,").encode("latin-1")},
    "spreadsheet": {"a.xlsx": b"PK"},
    "JSON lines": {"a.jsonl.gz": b"\x1f\x8b"},
    "several formats": {"a.csv": GOOD, "b.tsv": GOOD},
}
# What is reported together is in one case.
OPTIONS: dict[str, dict[str, Any]] = {
    "values": {
        "task": "ranking", "num_classes": 2, "format": "xml", "columns": ["a", "a"], "encoding": "latin-x",
        "num_buckets": 0, "max_bad_rows": -1, "delimiter": "||",
    },
    "columns": {"features": {"kk": {}, "y": {}, "x": {"width": 2}}, "weight": "x"},
    "unknown type and option, invalid name": {"features": {"a b": {"column": "x"}, "x": {"dtype": "int", "wide": 2}}},
    "options that contradict a list": {
        "features": {"w": {"dtype": "int64", "max_values": 3, "width": 2, "weights": "x", "combiner": "max"}},
    },
    "unknown split": {"split": {"by": "tme"}},
    "split that leaves nothing": {"split": {"by": "group", "column": "y", "fraction": 0.01}},
    "split by words as times": {"split": {"by": "time", "column": "w"}},
}  # fmt: skip
ROWS_OF_NUMBERS = {"word": "old,baker,1", "few fields": "1,baker", "no class": "1,baker,2"}
LABELS: dict[str, tuple[list, dict[str, Any]]] = {
    "one word": (["a"] * 20, {}),
    "rare words": ([f"w{n}" for n in range(100)], {}),
    "numbers but for one": ([str(n) for n in range(50)] + ["n.k."], {}),
    "three numbers of two": (["0", "1", "2"] * 20, {"task": "binary"}),
}
WEIGHTS = {
    "no column": ("2.0", {"weight": "wt"}),
    "words": ("a", {"max_bad_rows": 99}),
    "a negative weight": ("-1", {}),
}
INSPECTIONS = ["rows.csv", "rows.csv --delimiter ; --label like", "headless.csv --label y"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does


@pytest.mark.parametrize("case", FILES)
def test_files(tmp_path, case, snapshot):
    for name, content in FILES[case].items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PsrunError) as raised:
        table_files.table(tmp_path, label="y", split=0.1)
    message = re.sub(FOREIGN, "...", stated(raised.value, tmp=tmp_path))
    assert message == snapshot
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("case", OPTIONS)
def test_options(tmp_path, case, says):
    (tmp_path / "rows.csv").write_text(GOOD)
    says(table_files.table, "rows.csv", label="y", **OPTIONS[case])


@pytest.mark.parametrize("case", ROWS_OF_NUMBERS)
def test_rows(tmp_path, case, says):
    """Behind a row of two lines and a blank one."""
    path = tmp_path / "rows.csv"
    path.write_text(f'age,work,label\n1,"two\nlines",0\n\n{ROWS_OF_NUMBERS[case]}\n2,,1\n')
    says(table_files.table, path, features={"age": {}, "work": {"dtype": "string"}}, task="binary")


def test_weights_of_a_list(tmp_path, says):
    path = tmp_path / "rows.csv"
    path.write_text("history,seconds,label\n1|2,0.5|1,1\n1|2,1,0\n,,0\n")
    features = {"history": {"dtype": "int64", "num_buckets": 100, "max_values": 4, "weights": "seconds"}}
    says(table_files.table, path, features=features, task="binary")


@pytest.mark.parametrize("case", LABELS)
def test_labels(case, says):
    values, options = LABELS[case]
    profiler = Profiler("y")
    profiler.add(pa.array(values))
    says(label_guess.guess, profiler.profile(), **options)


@pytest.mark.parametrize("words", ["True", "maybe"])
def test_a_word_that_is_no_class(tmp_path, words, says):
    path = table_files.write(tmp_path / "rows.csv", {"x": [1.5, 2.5], "label": ["no", words]})
    says(table_files.table, path, features={"x": {}}, label_vocabulary=("no", "yes"))


@pytest.mark.parametrize("case", WEIGHTS)
def test_a_column_that_cannot_have_weights(case, tmp_path, says):
    value, options = WEIGHTS[case]
    path = tmp_path / "rows.csv"
    path.write_text(f"age,w,label\n1.5,{value},0\n2.5,{value},1\n")
    says(table_files.table, path, **{"label": "label", "task": "binary", "weight": "w", **options})


@pytest.mark.parametrize("arguments", INSPECTIONS)
def test_inspections(tmp_path, arguments, says):
    (tmp_path / "rows.csv").write_text("a;liked\n1;0\n2;1\n")
    (tmp_path / "headless.csv").write_text("0.5,7\n1,0\n2,1\n")
    says(commands.main, ["inspect", *arguments.split()])


def test_files_that_a_choice_of_data_reads(snapshot):
    (problem,) = composition.problems_of_arguments(["data=csv"], sweeps=False).values()
    assert str(problem) == snapshot


def test_keys_below_null(monkeypatch, says):
    own = ["data=table", "data.path=x.csv", "data.label=y", "data.features.x.dtype=int64"]
    monkeypatch.setattr("sys.argv", ["psrun", "hydra.run.dir=run", *own])
    says(command_line.run_experiment, 0.0)
