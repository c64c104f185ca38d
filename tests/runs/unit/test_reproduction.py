"""When a run counts as reproduced: equal numbers, rounding, the spread of seeds."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import pytest
from recorded_runs import a_run
from support import run_config

from psrun.errors import ConfigError
from psrun.results.provenance import WorkTree
from psrun.runs import reproduction
from psrun.runs.report.spread import Spread
from psrun.runs.reproduction import Determinism, Difference, Reproduction, Sample, of_code

EXACT = Determinism(True, "one worker")
ROUNDED = Determinism(True, "synchronous", rounding=1e-5)
FREE = Determinism(False, "asynchronous")
SAMPLE = Sample("3 seeds", {"val_auc": (0.66, 0.76)})
NONE = Sample()
PACKAGE = [Difference("package numpy", "1", "2")]
QUANTILES = {3: 4.303, 10: 2.262, 31: 2.042}  # 0.975 of Student's t, from a printed table, by the number of runs
MEMORY = [Difference("hardware memory_bytes", "1 GB", "2 GB", matters=False)]


@pytest.mark.parametrize(
    ("now", "steps", "determinism", "sample", "differences", "equal", "reproduced"),
    [
        (0.71, 40, EXACT, NONE, [], True, True),
        (0.71, 40, FREE, NONE, PACKAGE, True, True),
        (0.71, 39, EXACT, NONE, [], False, False),
        (0.7100001, 40, EXACT, NONE, [], False, False),
        (0.7100001, 40, ROUNDED, NONE, [], True, True),
        (0.72, 40, ROUNDED, SAMPLE, [], False, False),  # must be equal, whatever the seeds show
        (0.72, 40, EXACT, SAMPLE, MEMORY, False, False),
        (0.72, 40, EXACT, SAMPLE, PACKAGE, False, True),
        (0.72, 40, FREE, SAMPLE, [], False, True),
        (0.80, 40, FREE, SAMPLE, [], False, False),
        (0.72, 39, FREE, SAMPLE, [], False, False),
        (0.72, 40, FREE, NONE, [], False, False),  # not judged
        (None, 40, FREE, SAMPLE, [], False, False),
    ],
)
def test_verdicts(now, steps, determinism, sample, differences, equal, reproduced):
    compared = Reproduction(
        {"val_auc": 0.71}, {} if now is None else {"val_auc": now}, (40, steps), sample, "val_auc", determinism,
        differences,
    )  # fmt: skip
    assert (compared.equal, compared.is_reproduced) == (equal, reproduced)
    assert compared.verdict.startswith("reproduced") == reproduced
    assert compared.facts["reproduced"] == reproduced


def test_packages_that_the_run_imports_come_first_and_others_are_counted(tmp_path):
    (tmp_path / "code").mkdir()
    lines = ["import yaml, os.path", "from not_installed.part import x", "from . import near", "def f():"]
    (tmp_path / "code" / "net.py").write_text("\n".join([*lines, "    import scipy.stats"]))
    (tmp_path / "code" / "broken.py").write_text("def")
    copies = {"net": "code/net.py", "broken": "code/broken.py", "lost": "code/lost.py"}
    imported = reproduction.imported_packages(tmp_path, {"modules": copies})
    assert {"tensorflow", "numpy", "psrun", "pyyaml", "not-installed", "scipy"} <= set(imported)
    assert "near" not in imported
    then = {"python": "3.11.1", "packages": {"numpy": "1", "keras": "3", "gone": "7", "not-installed": "1"}}
    now = {"python": "3.11.1", "packages": {"numpy": "2", "keras": "3"}}
    differences = reproduction.of_environment(then, now)
    others = [each.what for each in differences if reproduction.is_other_package(each, imported)]
    assert others == ["package gone"]
    assert reproduction.same(then, now, imported) == "python 3.11.1, keras 3"
    many = [Difference(f"package p{number}", "1", "2") for number in range(1200)]
    assert reproduction.counted(many).startswith("1,200 other packages differ (p0, p1, p2, p3, p4, ...); ")


@pytest.mark.parametrize("number", QUANTILES)
def test_the_interval_is_that_of_one_more_run(number):
    pytest.importorskip("scipy.stats")
    values = [(7 * index) % 11 / 10 for index in range(number)]
    low, high = Spread.of(values).interval()
    half = QUANTILES[number] * stdev(values) * (1 + 1 / number) ** 0.5
    assert (low, high) == pytest.approx((mean(values) - half, mean(values) + half), rel=1e-3)


@pytest.mark.parametrize(
    ("overrides", "changes", "rounding"),
    [
        (("cluster=none",), {}, 0.0),
        (("cluster=inprocess",), {"cluster": {"num_workers": 1}}, 0.0),
        (("cluster=inprocess", "trainer.prefetch_rows=true"), {"cluster": {"num_workers": 1}}, None),
        (("cluster=inprocess",), {"cluster": {"num_workers": 2}}, None),
        (("cluster=inprocess", "consistency=ssp"), {"cluster": {"num_workers": 2}}, None),
        (("cluster=inprocess", "consistency=sync"), {"cluster": {"num_workers": 2}}, 1e-5),
        (("cluster=inprocess", "cluster.num_workers=3", "consistency=sync", "consistency.backup_workers=1"),
         {"cluster": {"num_workers": 3}}, None),
        (("cluster=inprocess", "consistency=gba"), {"cluster": {"num_workers": 1}}, None),
        (("cluster=inprocess", "consistency=gba", "consistency.tolerance=0"), {"cluster": {"num_workers": 2}}, 1e-5),
        (("cluster=local",), {"cluster": {"num_workers": 1}, "recoveries": [{"task": "ps-0"}]}, None),
        (("cluster=none",), {"environment": {"hardware": {"gpus": ["H100"]}}}, None),
    ],
)  # fmt: skip
def test_what_must_give_equal_numbers(overrides, changes, rounding):
    found = reproduction.determinism(run_config(*overrides), [changes, changes])
    assert (found.rounding if found.equal else None) == rounding
    assert not reproduction.determinism(run_config(*overrides), [changes, changes], resumed=True).equal


def test_the_spread_is_that_of_completed_runs_which_differ_in_the_seed(tmp_path):
    pytest.importorskip("scipy.stats")
    for seed in (1, 2, 3, 4):
        a_run(tmp_path / f"seed{seed}", seed=seed, auc=0.7 + seed / 100)
    a_run(tmp_path / "failed", seed=5, auc=0.1, status="failed")
    a_run(tmp_path / "other", seed=6, auc=0.2, workers=4)
    found = reproduction.sample(tmp_path / "seed1", [tmp_path], named=True)
    assert found.name == "4 seeds"
    assert found.intervals["val_auc"] == pytest.approx(Spread.of([0.71, 0.72, 0.73, 0.74]).interval())
    assert reproduction.sample(tmp_path / "other", [tmp_path], named=False) == Sample()
    with pytest.raises(ConfigError):
        reproduction.sample(tmp_path / "other", [tmp_path], named=True)
    for number in (1, 2):
        a_run(tmp_path / f"again{number}", seed=1, auc=0.71 + number / 1000)
    found = reproduction.sample(tmp_path / "seed1", [tmp_path], named=False)
    assert found.name == "3 runs with the same seed"
    assert found.intervals["val_auc"] == pytest.approx(Spread.of([0.71, 0.711, 0.712]).interval())


def test_the_environment_differs_by_more_than_a_little_memory():
    def environment(cores: int, memory_bytes: int, **packages: str) -> dict[str, Any]:
        hardware = {"cpu": "A", "cores": cores, "memory_bytes": memory_bytes, "gpus": []}
        return {"python": "3.11.7", "packages": packages, "hardware": hardware}

    then = environment(2, 8_000_000_000, numpy="1")
    assert reproduction.of_environment(then, environment(2, 8_050_000_000, numpy="1")) == []
    assert reproduction.of_environment(then, environment(4, 9_000_000_000, numpy="2", six="1")) == [
        Difference("hardware cores", "2", "4"), Difference("hardware memory_bytes", "8.0 GB", "9.0 GB", matters=False),
        Difference("package numpy", "1", "2"), Difference("package six", "-", "1"),
    ]  # fmt: skip


def test_a_file_in_a_store_differs_by_its_version():
    then = {"s3://a": {"version": ["1"], "bytes": 5}, "b": {"sha256": "0" * 64, "bytes": 5}, "c": {"sha256": "1" * 64}}
    now = {"s3://a": {"version": ["2"], "bytes": 5}, "b": {"sha256": "0" * 64, "bytes": 5}, "c": None}
    found = reproduction.of_data(then, now)
    assert [each.what for each in found] == ["data s3://a", "data c"]
    assert found[1].now == "not found"


def test_the_code_here_and_the_recorded_code_are_compared_as_two_runs_are(tmp_path):
    run = tmp_path / "run"
    project = tmp_path / "project"
    recorded = {"same": b"a = 1\n", "other": b"a\n\xff\n", "lost": b""}
    here = {"same": b"a = 1\n", "other": b"a\n\xfe\nb\n"}
    for folder, contents in ((run / "code" / "modules", recorded), (project, here)):
        folder.mkdir(parents=True)
        for name, content in contents.items():
            (folder / f"{name}.py").write_bytes(content)
    modules = {name: f"code/modules/{name}.py" for name in recorded}
    (run / "code" / "dirty.diff").write_text("+a\n")
    code = {"commit": "abc", "branch": "trunk", "dirty": True, "diff": "code/dirty.diff", "modules": modules}
    tree = WorkTree("def", "other", dirty=True, diff=b"+a\n+b\n")
    found = of_code(run, code, tree, [tmp_path / "nowhere", project])
    assert {each.what: (each.then, each.now) for each in found} == {
        "commit": ("abc", "def"),
        "uncommitted changes": ("1 lines", "2 lines (+1 -0)"),
        "module other": ("2 lines", "3 lines (+2 -1)"),
        "module lost": ("0 lines", "-"),
    }
    assert not any(each.matters for each in found)
    tree = WorkTree("abc", dirty=False)
    assert {each.what: each.now for each in of_code(run, code, tree, [])}["uncommitted changes"] == "-"
