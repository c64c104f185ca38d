"""Sweeps: what is recorded, how many go at once, how they end and go on; jobs mostly without TensorFlow."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console
from standing_in import Sweep as Started
from standing_in import stood_in
from support import run_config

from psrun import atomic, multirun
from psrun.errors import ConfigError, SweepError
from psrun.sweeps import capacity, plans, state
from psrun.sweeps.record import Job, Sweep
from psrun.sweeps.view import View

GIB = 2**30
LONG = "trainer.epochs=1000"


def installed(name: str) -> bool:
    return importlib.util.find_spec("hydra_plugins") is not None and (
        importlib.util.find_spec(f"hydra_plugins.{name}") is not None
    )


needs_joblib = pytest.mark.skipif(not installed("hydra_joblib_launcher"), reason="the extra psrun[joblib] is missing")
needs_submitit = pytest.mark.skipif(not installed("hydra_submitit_launcher"), reason="the extra is missing")
needs_optuna = pytest.mark.skipif(not installed("hydra_optuna_sweeper"), reason="the extra psrun[optuna] is missing")
LAUNCHERS = [
    pytest.param([], id="basic"),
    pytest.param(["hydra/launcher=joblib", "hydra.launcher.n_jobs=3"], id="joblib", marks=needs_joblib),
    pytest.param(["hydra/launcher=submitit_local"], id="submitit_local", marks=needs_submitit),
]


@pytest.fixture
def start(tmp_path):
    """Starts sweeps; none of their processes outlives the test."""
    started = []

    def run(*arguments: str, folder: str = "sweep", real: bool = False) -> Started:
        given = (
            arguments if any(a.startswith("resume=") for a in arguments) else [*arguments, f"hydra.sweep.dir={folder}"]
        )
        started.append(Started(tmp_path, *given, folder=folder, real=real))
        return started[-1]

    yield run
    for each in started:
        each.close()


# -- how many at once


@pytest.mark.parametrize(
    ("overrides", "cores", "gib", "jobs"),
    [
        (["cluster=none"], 8, 64, 8),
        (["cluster=none"], 8, 3, 3),
        (["cluster=none"], 1, 0, 1),
        (["cluster=inprocess", "cluster.num_workers=4"], 8, 64, 2),
        (["cluster=local", "cluster.num_workers=2", "cluster.num_ps=3"], 64, 60, 10),
    ],
)
def test_jobs_at_once_follow_cores_and_memory(overrides, cores, gib, jobs):
    runs = [run_config("cluster=none"), run_config(*overrides)]
    assert capacity.jobs_at_once(runs, cores=cores, memory_bytes=gib * GIB) == jobs
    assert capacity.jobs_at_once([]) >= 1


def test_places_are_as_many_as_jobs_may_run_at_once(tmp_path):
    sweep = Sweep(tmp_path / "sweep", [], max_parallel=2)
    sweep.begin(again=False)
    taken = [sweep.take_place(), sweep.take_place()]
    assert None not in taken
    assert sweep.take_place() is None
    assert sweep.is_any_under_way()
    for place in taken:
        os.close(place)
    assert not sweep.is_any_under_way()


# -- the record


def test_a_folder_has_one_sweep(tmp_path):
    sweep = Sweep(tmp_path / "sweep", ["-m"])
    sweep.begin(again=False)
    with pytest.raises(ConfigError, match="holds a sweep that is going on"):
        Sweep(tmp_path / "sweep", ["-m"]).begin(again=True)
    over = tmp_path / "over"
    over.mkdir()
    (over / "sweep.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a sweep already"):
        Sweep(over, ["-m"]).begin(again=False)


def test_a_sweep_is_read_as_it_was_written(tmp_path):
    sweep = Sweep(tmp_path / "sweep", ["-m", "seed=1,2"], metric="val_auc", mode="max", max_parallel=3)
    sweep.begin(again=False)
    sweep.plan([Job(0, ["seed=1"], "0"), Job(1, ["seed=2"], "1")])
    sweep.now(1, status="failed", error="no luck")
    sweep.end("failed")
    read = Sweep.read(sweep.path)
    assert (read.arguments, read.metric, read.max_parallel, read.status) == (["-m", "seed=1,2"], "val_auc", 3, "failed")
    assert read.jobs == sweep.jobs


@pytest.mark.parametrize("text", [None, "", "[]", '{"jobs": []}', '{"psrun": "9", "jobs": [{}]}'])
def test_what_is_no_sweep_is_told(tmp_path, text):
    if text is not None:
        (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(ConfigError, match="resume: there is no sweep in"):
        multirun.resumed(["-m", f"resume={tmp_path}"])


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "write", full)
    with pytest.raises(SweepError, match=r"cannot be written to: .*No space left on device"):
        Sweep(tmp_path / "sweep", []).begin(again=False)


def test_other_arguments_than_at_the_start_are_named(tmp_path):
    sweep = Sweep(tmp_path, ["--config-dir", "own", "-m", "seed=1,2", "model=dense", "sweep.max_parallel=2"])
    sweep.begin(again=False)
    resume = f"resume={tmp_path}"
    _, arguments = multirun.resumed(["-m", resume, "seed=1,2", "sweep.max_parallel=1", "hydra/launcher=joblib"])
    assert arguments == [
        "--config-dir", "own", "-m", "seed=1,2", "model=dense", "sweep.max_parallel=1", "hydra/launcher=joblib",
        f"hydra.sweep.dir='{tmp_path}'",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as raised:
        multirun.resumed(["-m", resume, "seed=1,2,3", "trainer.epochs=2"])
    assert [line.partition("; ")[0] for line in str(raised.value).splitlines()] == [
        "seed: is '1,2,3' now and was '1,2' when the sweep was started",
        "trainer.epochs: is '2' now and was not given when the sweep was started",
    ]


# -- how jobs are


def job_folder(path: Path, **result) -> Path:
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(result))
    return path


def test_how_a_job_is_by_its_folder(tmp_path):
    began_s = time.time() - 5
    assert state.look(tmp_path / "none", since_s=began_s).status == "waiting"
    done = job_folder(tmp_path / "done", status="completed", metrics={"loss": 1.0}, wall_s=3.0, exit_code=0)
    failed = job_folder(tmp_path / "failed", status="failed", exit_code=1, error={"message": "first\nsecond"})
    assert state.look(failed, since_s=began_s).error == "first"
    for folder in (done, failed):
        os.utime(folder / "run.json", (1, 1))  # of a start before this one
    assert state.look(done, since_s=began_s).status == "completed"
    assert state.look(failed, since_s=began_s).status == "waiting"
    assert state.look(failed, since_s=began_s, final=True).status == "failed"


def test_jobs_are_told_apart_by_what_not_all_have(tmp_path):
    jobs = [Job(0, ["a=1", "b=1"], "0"), Job(1, ["a=1", "b=2"], "1")]
    assert state.told_apart(jobs) == {0: "b=1", 1: "b=2"}
    assert state.told_apart(jobs[:1]) == {0: "a=1 b=1"}
    sweep = Sweep(tmp_path, [], metric="val_auc", mode="max")
    for number, (status, metric) in enumerate([("completed", 0.5), ("completed", 0.7), ("failed", 0.9)]):
        sweep.jobs[number] = Job(number, [], str(number), status=status, metric=metric)
    best = state.best(sweep)
    assert best is not None
    assert best.number == 1


def test_a_terminal_sees_a_row_a_job_and_the_best_so_far(tmp_path):
    sweep = Sweep(tmp_path, [], metric="val_auc", mode="max", started_s=0.0)
    sweep.plan([Job(number, ["model=dense", f"x=[{number}]"], str(number)) for number in range(30)])
    job_folder(tmp_path / "0", status="completed", metrics={"val_auc": 0.75}, wall_s=3.0)
    job_folder(tmp_path / "1", status="running")
    (tmp_path / "1" / ".tasks").mkdir()
    progress = {"epoch": 1, "epochs": 2, "step": 10, "steps": 40, "steps_per_s": 5.0, "examples_per_s": 50.0,
                "loss": 0.5, "metrics": {"val_auc": 0.5}}  # fmt: skip
    beat = {"pid": 1, "at_s": 1.0, "state": "training", "progress": progress}
    (tmp_path / "1" / ".tasks" / "chief-0.json").write_text(json.dumps(beat))
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100, height=20)
    view = View(sweep, console)
    view.look()
    console.print(view._overview())
    shown = console.file.getvalue()
    assert [line.split() for line in shown.splitlines() if "x=[1]" in line] == [
        ["1", "x=[1]", "training", "10/40", "5", "val_auc", "0.5"]
    ]
    assert "1 of 30 jobs are over; best so far: val_auc 0.75, job 0 x=[0]" in shown
    assert len(shown.splitlines()) < 20


def test_elsewhere_lines_say_what_is_new(tmp_path):
    sweep = Sweep(tmp_path, [], started_s=0.0)
    sweep.plan([Job(0, ["x=[a]"], "0"), Job(1, ["x=2"], "1")])
    job_folder(tmp_path / "0", status="completed", metrics={"loss": 0.75, "auc": 1.0}, wall_s=3.0)
    job_folder(tmp_path / "1", status="failed", exit_code=1, error={"message": "no [luck]\nat all"})
    console = Console(file=io.StringIO(), width=200)
    view = View(sweep, console)
    view.look()
    view.look()
    view.result()
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines == [
        ["job", "0", "x=[a]", "completed", "in", "3.0", "s", "loss", "0.75"],
        ["job", "1", "x=2", "failed", "no", "[luck]"],
        ["job", "overrides", "status", "loss", "seconds", "error"],
        ["0", "x=[a]", "completed", "0.75", "best", "3.0"],
        ["1", "x=2", "failed", "no", "[luck]"],
    ]


def test_a_search_is_made_to_go_on():
    given = {"direction": "minimize", "max_failure_rate": 0.0, "sampler": {"seed": None}}
    sweeper = OmegaConf.create(given)
    added = multirun._settle(sweeper, set(), "max")
    assert (sweeper.direction, sweeper.max_failure_rate) == ("maximize", 1.0)
    assert added == [f"hydra.sweeper.sampler.seed={sweeper.sampler.seed}"]
    with pytest.raises(ConfigError, match=r"hydra.sweeper.direction: is minimize, and sweep.mode is max"):
        multirun._settle(OmegaConf.create(given), {"hydra.sweeper.direction"}, "max")
    assert multirun._settle(OmegaConf.create({"other": 1}), set(), None) == []


def test_plans_of_a_sweep_are_one_table(tmp_path):
    sweep = Sweep(tmp_path, [])
    sweep.plan([Job(0, ["x=1"], "0"), Job(1, ["x=2"], "1")])
    placement = [{"task": "ps-0", "bytes": 2000}, {"task": "ps-1", "bytes": 1000}, {"task": "chief-0", "bytes": 10}]
    job_folder(tmp_path / "0", status="completed", placement=placement,
               bytes_per_step={"read_bytes": 100, "pushed_bytes": 200})  # fmt: skip
    job_folder(tmp_path / "1", status="failed", error={"message": "too large"})
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(ConfigError, match=r"job 1 \(x=2\): too large"):
        plans.show(sweep, console)
    assert "2.0 kB, 1.0 kB  ps-0 2.0 kB  100 bytes  200 bytes" in " ".join(
        console.file.getvalue().split("\n")[2:3]
    ).replace("   ", "  ")


# -- the command, with jobs of no TensorFlow


@pytest.mark.command
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_jobs_run_beside_each_other_and_failed_ones_stop_nobody(start, launcher):
    sweep = start("seed=1,13,99,2,3", "sweep.max_parallel=2", "sweep.metric=val_auc", "sweep.mode=max", *launcher)
    assert sweep.end() == 1, sweep.said
    results = sweep.results()
    assert [results[n]["status"] for n in range(5)] == ["completed", "failed", "failed", "completed", "completed"]
    begins, ends = ({n: result.get(key) for n, result in results.items()} for key in ("began_s", "ended_s"))
    for n in (0, 3, 4):
        others = [m for m in (0, 3, 4) if m != n and begins[m] <= begins[n] < ends[m]]
        assert len(others) <= 1
    assert "unlucky" in sweep.said
    assert "was killed by SIGKILL" in sweep.said
    assert "and more" not in sweep.said  # the error line, not all of it
    assert "said to the terminal" not in sweep.said
    assert "said to the terminal" in (sweep.folder / "0" / "logs" / "console.log").read_text()
    assert "Error executing job" not in sweep.said
    assert "Traceback" not in sweep.said
    record = sweep.record
    assert (record["status"], record["jobs"][4]["metric"]) == ("failed", 0.03)
    assert "0.03 best" in sweep.said
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=10)


@pytest.mark.command
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 175)])
def test_a_signal_ends_all_jobs_in_good_order_and_the_sweep_goes_on_later(start, tmp_path, launcher, signum, code):
    sweep = start("seed=1,2,3", LONG, "sweep.max_parallel=2", *launcher)
    sweep.wait_for_running(2)
    sweep.send(signum)
    assert sweep.end() == code, sweep.said
    results = sweep.results()
    assert [results[n]["status"] for n in sorted(results)] == ["interrupted", "interrupted"]
    assert sweep.record["status"] == "interrupted"
    assert "psrun -m resume=" in sweep.said
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=10)
    (sweep.folder / "go").touch()
    again = start(f"resume={sweep.folder}")
    assert again.end() == 0, again.said
    after = again.results()
    for number in range(3):  # which two were begun first is the launcher's matter
        goes_on = number in results
        assert (after[number]["status"], after[number]["times"]) == ("completed", 1 + goes_on)
        assert after[number]["resume"] == (str(sweep.folder / str(number)) if goes_on else None)


@pytest.mark.command
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_nothing_outlives_a_sweep_that_is_killed(start, launcher):
    sweep = start("seed=1,2", LONG, "sweep.max_parallel=2", *launcher)
    sweep.wait_for_running(2)
    sweep.send(signal.SIGKILL)
    sweep.process.wait()
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=20)
    (sweep.folder / "go").touch()
    again = start(f"resume={sweep.folder}")
    assert again.end() == 0, again.said
    assert [result["times"] for result in again.results().values()] == [2, 2]


@pytest.mark.command
def test_a_second_signal_ends_all_at_once(start):
    sweep = start("seed=1,2", LONG, "sweep.max_parallel=2")
    sweep.wait_for_running(2)
    for result in sweep.results().values():
        os.kill(result["pid"], signal.SIGSTOP)  # they will not end in good order
    sweep.send(signal.SIGINT)
    sweep.wait(lambda: "once more ends all at once" in sweep.said, "answer")
    sweep.send(signal.SIGINT)
    assert sweep.end(within_s=15) == 130
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=10)


@pytest.mark.command
def test_what_is_completed_is_not_run_again_and_what_failed_is(start):
    sweep = start("seed=1,13,2")
    assert sweep.end() == 1, sweep.said
    again = start(f"resume={sweep.folder}")
    assert again.end() == 1
    assert {n: result["times"] for n, result in again.results().items()} == {0: 1, 1: 2, 2: 1}
    shutil.rmtree(sweep.folder / "2")
    (sweep.folder / "1" / "run.json").write_text(json.dumps({**again.results()[1], "status": "completed"}))
    third = start(f"resume={sweep.folder}")
    assert third.end() == 0, third.said
    assert "job 2 was completed, but" in third.said
    assert {n: result["times"] for n, result in third.results().items()} == {0: 1, 1: 2, 2: 1}
    fourth = start(f"resume={sweep.folder}")
    assert fourth.end() == 0
    assert "there is nothing to do" in fourth.said
    assert fourth.results() == third.results()


@pytest.mark.command
def test_all_jobs_are_checked_before_the_first_one_starts(start, tmp_path):
    sweep = start("trainer.steps_per_epoch=20,30,5", "trainer.epochs=1,0")
    assert sweep.end() == 2
    assert "trainer.epochs: is 0, must be 1 or more [job 1 (" in sweep.said
    assert "is 10, more than trainer.steps_per_epoch=5 [job 4 (" in sweep.said
    assert not sweep.folder.exists()
    sweep = start("trainer.epochs=1,2", "partitioner=none,nosuch", "modle=x")
    assert sweep.end() == 2
    assert "partitioner: there is no partitioner named 'nosuch'" in sweep.said
    assert "modle: no such key or group (value 'x'). Did you mean 'mode'?" in sweep.said
    assert "Ambiguous" not in sweep.said
    sweep = start("seed=1,2", "sweep.metric=val_auc")
    assert sweep.end() == 2
    assert "sweep.mode: must say what is better" in sweep.said
    sweep = start("seed=1,2", "hydra.sweep.subdir=same")
    assert sweep.end() == 2
    assert "for jobs 0 and 1; each needs one of its own" in sweep.said
    sweep = start("seed=1,2", "sweep.max_parallel=0")
    assert sweep.end() == 2
    assert "sweep.max_parallel: is 0, must be 1 or more" in sweep.said


@pytest.mark.command
def test_sweeps_of_the_same_second_do_not_share_folders(tmp_path):
    both = [Started(tmp_path, f"seed={seed},3", folder=f"sweep{seed}") for seed in (1, 2)]
    try:
        assert [each.end() for each in both] == [0, 0]
        assert len(list((tmp_path / "runs").glob("*-sweep-*/sweep.json"))) == 2
        assert len(list((tmp_path / "runs").glob("*-sweep-*/*/run.json"))) == 4
    finally:
        for each in both:
            each.close()


@pytest.mark.command
def test_a_folder_of_a_sweep_is_not_used_twice(start):
    assert start("seed=1").end() == 0
    again = start("seed=2")
    assert again.end() == 2
    assert "holds a sweep already" in again.said
    assert again.results()[0]["times"] == 1


@pytest.mark.command
def test_a_metric_that_no_job_has_is_told(start):
    sweep = start("seed=1,2", "sweep.metric=val_acu", "sweep.mode=max")
    assert sweep.end() == 2
    assert "sweep.metric: no job has a metric 'val_acu'. Did you mean 'val_auc'?" in sweep.said


SEARCH = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2", "seed=choice(2,3,13)"]


@pytest.mark.command
@needs_optuna
def test_a_search_goes_over_failed_trials_and_improves_any_metric(start):
    sweep = start(*SEARCH, "hydra.sweeper.n_trials=8", "hydra.sweeper.sampler.seed=1", "sweep.metric=val_auc",
                  "sweep.mode=max")  # fmt: skip
    assert sweep.end() == 1, sweep.said
    results = sweep.results()
    assert len(results) == 8
    assert {result["status"] for result in results.values()} == {"completed", "failed"}
    found = OmegaConf.load(sweep.folder / "optimization_results.yaml")
    assert (found.best_params.seed, found.best_value) == (3, 0.03)
    assert "Traceback" not in sweep.said
    again = start(f"resume={sweep.folder}")
    assert again.end() == 0
    assert "there is nothing to do" in again.said


@pytest.mark.command
@needs_optuna
def test_a_search_that_was_interrupted_goes_on_where_it_was(start):
    sweep = start(*SEARCH, LONG, "sweep.metric=loss", "sweep.mode=min", "sweep.max_parallel=2")
    sweep.wait_for_running(2)
    sweep.send(signal.SIGINT)
    assert sweep.end() == 130, sweep.said
    (sweep.folder / "go").touch()
    before = {job["number"]: job["overrides"] for job in sweep.record["jobs"]}
    again = start(f"resume={sweep.folder}")
    assert again.end() in (0, 1), again.said
    assert {job["number"]: job["overrides"] for job in again.record["jobs"][:2]} == before
    assert {n: result["times"] for n, result in again.results().items()} == {0: 2, 1: 2, 2: 1, 3: 1}


@pytest.mark.command
@needs_optuna
def test_a_search_in_which_all_trials_fail_is_no_crash(start):
    sweep = start("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "seed=choice(13,99)", "sweep.metric=loss",
                  "sweep.mode=min")  # fmt: skip
    assert sweep.end() == 1, sweep.said
    assert [result["status"] for result in sweep.results().values()] == ["failed", "failed"]
    assert "Traceback" not in sweep.said


@pytest.mark.command
@needs_optuna
def test_mistakes_in_a_search_are_told(start):
    sweep = start(*SEARCH)
    assert sweep.end() == 2
    assert "sweep.metric: a search needs what it is to improve" in sweep.said
    assert not sweep.folder.exists()
    sweep = start(*SEARCH, "sweep.metric=auc", "sweep.mode=max", folder="other")
    assert sweep.end() == 2
    assert "no job has a metric 'auc'" in sweep.said
    assert len(sweep.results()) == 2  # and not all four


@pytest.mark.command
def test_a_terminal_sees_a_sweep_and_ctrl_c_ends_it(tmp_path):
    import pexpect  # the test extra brings it

    child = pexpect.spawn(
        sys.executable, ["-m", "psrun", "-m", "seed=1,2,3", LONG, "sweep.max_parallel=2", "hydra.sweep.dir=sweep"],
        cwd=tmp_path, env=stood_in(tmp_path), dimensions=(40, 140), timeout=60, encoding="utf-8",
    )  # fmt: skip
    try:
        child.expect(r"0  *seed=1  *running")
        child.expect("0 of 3 jobs are over")
        child.sendintr()
        child.expect("once more ends all at once")
        child.expect(r"interrupted.*interrupted.*not run")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 130
    finally:
        child.close(force=True)


# -- the command, with real jobs

TINY = ["model=dense", "optimizer=sgd", "cluster=none", "evaluation=none", "trainer.steps_per_epoch=10",
        "data.num_train_examples=500"]  # fmt: skip


@pytest.mark.command
def test_plans_of_a_sweep_are_made_in_one_process(psrun, tmp_path):
    sweep = f"hydra.sweep.dir={tmp_path / 'sweep'}"
    done = psrun(
        "-m", "mode=plan", "cluster.num_ps=1,2", "partitioner=fixed_shards", "partitioner.num_shards=2,9", sweep
    )
    assert done.code == 2
    assert done.stderr.count("more than the 8 rows of embedding") == 2
    assert "job 1 (cluster.num_ps=1 partitioner.num_shards=9)" in done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["0", "cluster.num_ps=1", "4.7", "kB", "ps-0", "4.7", "kB", "17.0", "kB", "17.0", "kB"] in rows
    alone = psrun("mode=plan", "cluster.num_ps=1", "partitioner=fixed_shards", "partitioner.num_shards=2").result
    one_of = json.loads((tmp_path / "sweep" / "0" / "run.json").read_text())
    for key in ("status", "mode", "placement", "bytes_per_step", "bytes_per_step_by_task"):
        assert one_of[key] == alone[key]
    assert one_of["overrides"][0] == "mode=plan"


@pytest.mark.thorough
def test_twelve_jobs_two_failures_and_an_interruption_end_complete(start):
    sweep = start("optimizer.learning_rate=0.01,0.02,0.03,0.04,1e30,0.05", "seed=1,2", "trainer.epochs=2", *TINY,
                  real=True)  # fmt: skip

    def over() -> int:
        return sum(result["status"] in ("completed", "failed") for result in sweep.results().values())

    sweep.wait(lambda: over() >= 3, "three jobs that are over", within_s=300)
    sweep.send(signal.SIGINT)
    assert sweep.end() == 130, sweep.said
    before = sweep.results()
    assert len(before) < 12
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=10)
    again = start(f"resume={sweep.folder}", real=True)
    assert again.end(within_s=600) == 1, again.said
    after = again.results()
    assert [after[n]["status"] for n in range(12)] == ["completed"] * 8 + ["failed"] * 2 + ["completed"] * 2
    assert {after[n]["error"]["type"] for n in (8, 9)} == {"NonFiniteLossError"}
    for number, result in before.items():
        if result["status"] == "completed":
            assert after[number] == result
    assert {result["steps"]["applied"] for n, result in after.items() if n not in (8, 9)} == {20}
    assert [job["status"] for job in again.record["jobs"]] == [after[n]["status"] for n in range(12)]
    table = again.said[again.said.rindex("job  overrides") :].partition("what is not completed")[0]
    assert table.count("completed") == 10
    assert "the loss became" in " ".join(table.split())
    told = subprocess.run(
        [sys.executable, "-m", "psrun", "report", str(sweep.folder), "--json", "-"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    rows = json.loads(told.stdout)
    assert [row["status"] for row in rows] == [after[n]["status"] for n in range(12)]
    assert [bool(row["error"]) for row in rows] == [n in (8, 9) for n in range(12)]


@pytest.mark.thorough
def test_no_task_of_a_cluster_outlives_a_sweep_that_is_killed(start):
    sweep = start("seed=1", "cluster=local", "trainer.epochs=10000", real=True)
    sweep.wait(lambda: list(sweep.folder.glob("0/.tasks/chief-0.json")), "a chief", within_s=120)
    sweep.wait(lambda: len(sweep.seen) >= 6, "all tasks")
    sweep.send(signal.SIGKILL)
    sweep.process.wait()
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=20)
