"""The benchmarks: a way that fails is a row, and the ways of PyTorch meet no TensorFlow."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from support import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"


@dataclass(frozen=True)
class Scripted:
    """A way that runs a line of Python in its folder."""

    name: str
    script: str

    def run(self, folder: Path):
        from measured import Windows, run_python

        spent = run_python(["-c", self.script], folder)
        return Windows(json.loads((folder / "rates.json").read_text())), spent

    def plain(self):
        return {"script": self.script}


def test_a_way_that_fails_is_a_row_and_the_others_are_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measured import Goal, Measurements

    written = "open('rates.json', 'w').write('[2.0, 4.0]')"
    crashing = Scripted("crashing", "import sys; sys.stderr.write('LLVM ERROR: [inconsistency]'); sys.exit(134)")
    silent = Scripted("silent", "open('rates.json', 'w').write('[]')")
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    measurements = Measurements([crashing, Scripted("working", written), silent])
    measurements.measure(2, console)
    measurements.show(console)

    assert [(each.name, each.round) for each in measurements.timed] == [("working", 0), ("working", 1)]
    assert {(each.name, each.round) for each in measurements.failed} == {
        (name, index) for name in ("crashing", "silent") for index in (0, 1)
    }
    assert "crashing: failed: " in printed.getvalue()
    assert "LLVM ERROR: [inconsistency]" in printed.getvalue()
    rows = [" ".join(line.split()) for line in printed.getvalue().splitlines()]
    assert "crashing failed in 2 rounds" in rows
    assert "working 3.0 (2.0 to 4.0)" in rows
    assert measurements.rounds() == [{"working": 3.0}] * 2
    assert Goal("working", "crashing", 1.0).ratio(measurements.rounds()) is None
    assert [each["name"] for each in measurements.plain()["failed"]].count("silent") == 2
    json.dumps(measurements.plain())


def imported(name: str) -> set[str]:
    """The modules that a benchmark imports, through the benchmarks that it imports."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse((BENCHMARKS / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    benchmarks = [each for each in modules - {name} if (BENCHMARKS / f"{each}.py").exists()]
    return modules.union(*map(imported, benchmarks))


@pytest.mark.parametrize("program", ["torch_by_hand", "torch_dlrm_by_hand"])
def test_the_ways_of_pytorch_import_no_tensorflow(program):
    roots = {each.partition(".")[0] for each in imported(program)}
    assert "torch" in roots
    assert not {"tensorflow", "tf_keras", "keras", "psrun"} & roots


def test_what_the_ways_of_pytorch_share_with_others_brings_no_tensorflow():
    attempt = "try:\n import torch_by_hand\nexcept ModuleNotFoundError as error:\n assert error.name == 'torch'"
    here = f"import by_hand\n{attempt}"
    script = f"{here}\nimport sys\nassert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=BENCHMARKS, check=True, timeout=60)


def test_each_way_names_a_program_that_knows_its_kind(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measured import ByHand, Setting

    for kind in ("packed", "limit", "torch", "torch_ps"):
        program, given, *_ = ByHand(kind, kind, Setting()).command(tmp_path)
        tree = ast.parse(Path(program).read_text(encoding="utf-8"))
        kinds = next(
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "KINDS"
        )
        assert given in kinds


def test_each_peer_names_a_program_that_knows_its_kind(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measured import Setting
    from peers import peers

    for peer in peers(Setting()):
        tree = ast.parse((BENCHMARKS / peer.program).read_text(encoding="utf-8"))
        kinds = next(
            [ast.literal_eval(key) for key in node.value.keys]
            for node in tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "KINDS"
        )
        assert peer.kind in kinds


def test_the_losses_of_the_floor_equal_those_of_the_loop_in_float64():
    small = ("--rows=300", "--batch-size=128", "--num-examples=1024", "--check")
    command = [sys.executable, str(BENCHMARKS / "floor_by_hand.py"), "floor", *small]
    ended = subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    assert "losses of 20 steps differ from float64 by" in ended.stdout


def test_a_comparison_of_starts_shows_medians_and_the_range_of_the_ratios(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import startup

    figures = {"first step (s)": {"other": [8.0, 4.0, 6.0], "this": [4.0, 3.0, 1.5]}}
    row = "| first step (s) | 6.00 | 3.00 | 0.50 (0.25 to 0.75) |"
    assert startup._table(("other", "this"), figures, {}).splitlines()[2] == row
    aimed = startup._table(("other", "this"), figures, {"first step (s)": 0.65})
    assert aimed.splitlines()[2] == f"{row} 0.65 |"
    alone = startup._table(("this",), {"first step (s)": {"this": [4.0, 3.0, 1.5]}}, {})
    assert alone.splitlines()[2] == "| first step (s) | 3.00 (1.50 to 4.00) |"


def test_processes_that_lost_their_parent_count_for_a_start_and_none_is_left(tmp_path):
    script = """if True:
        import pathlib, sys, startup
        orphan = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-S', '-c', sys.argv[1]]).pid)"
        busy = "import time\\nwhile time.process_time() < 0.3: pass"
        here = pathlib.Path()
        with startup._adopting():
            assert startup._run(["-S", "-c", orphan, busy], here, sys.executable).cpu_s > 0.3
            within_s, startup._ENDS_WITHIN_S = startup._ENDS_WITHIN_S, 0.0
            try:
                startup._run(["-S", "-c", orphan, "import time; time.sleep(60)"], here, sys.executable)
            except RuntimeError as error:
                assert "time.sleep(60)" in str(error)
            else:
                raise AssertionError
            startup._ENDS_WITHIN_S = within_s
        assert not pathlib.Path("/proc", pathlib.Path("output.log").read_text().strip()).exists()
    """
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True, timeout=60)


def test_the_loop_in_float64_goes_along_the_gradient(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import dlrm_by_hand
    import numpy as np

    data = dlrm_by_hand.examples(3, 8)
    weights = dlrm_by_hand.initial_weights(3)
    # Two cells of the table, and a kernel and a bias of each part.
    arrays = [weights.table, weights.table, *weights.bottom[0], *weights.top[0], *weights.top[-1]]
    places = [(0, 1), (40, 3), (2, 5), (7,), (20, 9), (4,), (6, 0), (0,)]
    loss, by_rows, by_dense = dlrm_by_hand._gradients(weights, data)
    by_table = np.zeros(weights.table.shape)
    np.add.at(by_table, data.ids, by_rows)
    last = 2 * len(weights.bottom)
    of_arrays = [by_table, by_table, *by_dense[:2], *by_dense[last : last + 2], *by_dense[-2:]]
    for array, place, of_array in zip(arrays, places, of_arrays):
        kept = array[place]
        array[place] = kept + 1e-3
        more, _, _ = dlrm_by_hand._gradients(weights, data)
        moved = float(array[place]) - float(kept)
        array[place] = kept
        assert abs((more - loss) / moved - of_array[place]) < 1e-4 + 1e-2 * abs(of_array[place])


def test_a_peer_whose_package_is_missing_is_a_row(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measured import Measurements, Setting, Spent, Timed
    from peers import BASE, Peer, markdown

    absent = Peer("absent", "absent.py", "absent", Setting(), packages=(("no-such-package", "no_such_module"),))
    assert absent.missing() == "no-such-package"
    measurements = Measurements([Scripted(BASE, ""), Scripted("slower", "")])
    for name, rates in ((BASE, [90.0, 110.0]), ("slower", [40.0, 60.0])):
        measurements.timed.append(Timed(name, 0, rates, Spent(0.0, 0.0, 0.0, 0.0), [9.0, 11.0]))
    table = markdown([BASE, "slower", "absent"], measurements, {"absent": "no-such-package"})
    assert table.splitlines()[3:] == [
        "| slower | 50.0 (40.0 to 60.0) | 2.00 (2.00 to 2.00) | 10.0 (9.0 to 11.0) |",
        "| absent | not installed: no-such-package | | |",
    ]


def test_a_table_is_written_between_its_marks_and_nowhere_else(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measured import write_between

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- peers -->\nold\n<!-- end of peers -->\nafter\n")
    write_between(page, "peers", "new")
    assert page.read_text() == "before\n<!-- peers -->\n\nnew\n\n<!-- end of peers -->\nafter\n"
    with pytest.raises(ValueError, match="must have <!-- growth -->"):
        write_between(page, "growth", "new")


def test_a_curve_has_the_exponents_of_its_points_and_leaves_out_those_that_fail(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import growth

    def measure(size: int, folder: Path) -> growth.Cost:
        if size == 1000:
            raise RuntimeError("too large")
        return growth.Cost(2e-3 * size, 1e-4 * size**2)

    curve = growth.Curve("a step", "rows", (1, 10, 100, 1000), measure)
    printed = io.StringIO()
    points = growth.measured(curve, 2, Console(file=printed, width=200))
    assert [len(points.costs[size]) for size in (1, 10, 100)] == [2, 2, 2]
    assert printed.getvalue().count("a step, by rows 1,000: failed: too large") == 2
    row = "| a step | rows | 1, 10, 100 | 2, 20, 200 ms | 0.1, 10, 1000 ms | 1.00 | 2.00 | 2.00 |"
    assert growth.markdown([points]).splitlines()[2:] == [row]
    json.dumps(points.plain())
