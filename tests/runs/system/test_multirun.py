"""`psrun -m`: sweeps as a person starts, interrupts, kills and resumes them; jobs mostly without TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from outcomes import check_rebuilt
from stood_in_jobs import LONG, stood_in, sweeps


def installed(name: str) -> bool:
    return importlib.util.find_spec("hydra_plugins") is not None and (
        importlib.util.find_spec(f"hydra_plugins.{name}") is not None
    )


needs_joblib = pytest.mark.skipif(not installed("hydra_joblib_launcher"), reason="the extra psrun[joblib] is missing")
needs_submitit = pytest.mark.skipif(not installed("hydra_submitit_launcher"), reason="the extra is missing")
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=3"]
SUBMITIT = ["hydra/launcher=submitit_local"]
LAUNCHERS = [
    pytest.param([], id="basic"),
    pytest.param(JOBLIB, id="joblib", marks=[needs_joblib, pytest.mark.thorough]),
    pytest.param(SUBMITIT, id="submitit_local", marks=[needs_submitit, pytest.mark.thorough]),
]
INT, HUP = (signal.SIGINT, 130), (signal.SIGHUP, 175)


@pytest.fixture
def start(tmp_path):
    """Starts sweeps; none of their processes outlives the test."""
    yield from sweeps(tmp_path)


# -- the command, with jobs of no TensorFlow


@pytest.mark.command
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_jobs_run_beside_each_other_and_failed_ones_stop_nobody(start, launcher):
    sweep = start("seed=1,13,99,2,3", "sweep.max_parallel=2", "sweep.metric=val_auc", "sweep.mode=max", *launcher)
    assert sweep.end() == 1, sweep.output
    results = sweep.results()
    assert [results[n]["status"] for n in range(5)] == ["completed", "failed", "failed", "completed", "completed"]
    begins, ends = ({n: result.get(key) for n, result in results.items()} for key in ("began_s", "ended_s"))
    for n in (0, 3, 4):
        others = [m for m in (0, 3, 4) if m != n and begins[m] <= begins[n] < ends[m]]
        assert len(others) <= 1
    assert "unlucky" in sweep.output
    assert "was killed by SIGKILL" in sweep.output
    assert "and more" not in sweep.output  # the error line, not all of it
    assert "printed to the terminal" not in sweep.output
    assert "printed to the terminal" in (sweep.folder / "0" / "logs" / "console.log").read_text()
    assert "Error executing job" not in sweep.output
    assert "Traceback" not in sweep.output
    record = sweep.record
    assert (record["status"], record["jobs"][4]["metric"]) == ("failed", 0.03)
    assert "0.03 best" in sweep.output
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=10)


@pytest.mark.command
@pytest.mark.parametrize(
    ("launcher", "signum", "code"),
    [
        pytest.param([], *HUP, id="basic-HUP"),
        pytest.param(JOBLIB, *INT, id="joblib-INT", marks=[needs_joblib, pytest.mark.thorough]),
        pytest.param(SUBMITIT, *HUP, id="submitit-HUP", marks=[needs_submitit, pytest.mark.thorough]),
    ],
)
def test_a_signal_stops_all_jobs_cleanly_and_the_sweep_can_be_resumed(start, tmp_path, launcher, signum, code):
    sweep = start("seed=1,2,3", LONG, "sweep.max_parallel=2", *launcher)
    sweep.wait_for_running(2)
    sweep.send(signum)
    assert sweep.end() == code, sweep.output
    results = sweep.results()
    ends = [(results[n]["status"], results[n]["exit_code"]) for n in sorted(results)]
    assert ends == [("interrupted", code), ("interrupted", code)]
    assert sweep.record["status"] == "interrupted"
    assert "psrun resume " in sweep.output
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=10)
    (sweep.folder / "go").touch()
    again = start(f"resume={sweep.folder}")
    assert again.end() == 0, again.output
    after = again.results()
    for number in range(3):  # which two were begun first is the launcher's matter
        goes_on = number in results
        assert (after[number]["status"], after[number]["times"]) == ("completed", 1 + goes_on)
        assert after[number]["resume"] == (str(sweep.folder / str(number)) if goes_on else None)


@pytest.mark.command
@pytest.mark.parametrize("now", [False, True])
def test_a_sweep_is_stopped_as_a_whole(start, now):
    sweep = start("seed=1,2,3", LONG, "sweep.max_parallel=2")
    sweep.wait_for_running(2)
    command = [sys.executable, "-m", "psrun", "stop", str(sweep.folder), *(["--now"] if now else [])]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert sweep.end() == 130, sweep.output
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=10)
    if not now:
        assert "interrupted (2 interrupted, 1 waiting); to resume: psrun resume " in stopped.stdout
        assert sweep.record["status"] == "interrupted"


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
    assert again.end() == 0, again.output
    assert [result["times"] for result in again.results().values()] == [2, 2]


@pytest.mark.thorough
@pytest.mark.command
def test_what_is_completed_is_not_run_again_and_what_failed_is(start):
    sweep = start("seed=1,13,2")
    assert sweep.end() == 1, sweep.output
    again = start(f"resume={sweep.folder}", "sweep.max_parallel=1")
    assert again.end() == 1, again.output
    assert again.record["max_parallel"] == 1
    assert {n: result["times"] for n, result in again.results().items()} == {0: 1, 1: 2, 2: 1}
    shutil.rmtree(sweep.folder / "2")
    (sweep.folder / "1" / "run.json").write_text(json.dumps({**again.results()[1], "status": "completed"}))
    third = start(f"resume={sweep.folder}")
    assert third.end() == 0, third.output
    assert "job 2 was completed, but" in third.output
    assert {n: result["times"] for n, result in third.results().items()} == {0: 1, 1: 2, 2: 1}
    fourth = start(f"resume={sweep.folder}")
    assert fourth.end() == 0
    assert "nothing to do" in fourth.output
    assert fourth.results() == third.results()


@pytest.mark.thorough
@pytest.mark.command
def test_a_job_that_requests_a_restart_continues_within_its_sweep_but_not_for_ever(start):
    sweep = start("seed=17,18", "checkpoint=epoch,none")  # 17 requests it twice, 18 each time
    assert sweep.end() == 1, sweep.output
    outcomes = {n: (result["status"], result["times"]) for n, result in sweep.results().items()}
    assert outcomes == {0: ("completed", 3), 1: ("interrupted", 1), 2: ("interrupted", 5), 3: ("interrupted", 1)}
    resumed = {n: result["resume"] for n, result in sweep.results().items()}
    assert resumed == {0: str(sweep.folder / "0"), 1: None, 2: str(sweep.folder / "2"), 3: None}


@pytest.mark.thorough
@pytest.mark.command
def test_what_a_sweep_has_not_begun_is_run_as_it_was_checked_at_its_start(start, tmp_path):
    mine = tmp_path / "mine" / "experiment"
    mine.mkdir(parents=True)
    template = "# @package _global_\noptimizer: {{learning_rate: {}}}\n"
    (mine / "tried.yaml").write_text(template.format(0.125))
    chosen = ["--config-dir", str(mine.parent), "experiment=tried", LONG, "sweep.max_parallel=1"]
    sweep = start(*chosen, "seed=1,2")
    sweep.wait_for_running(1)
    sweep.send(signal.SIGINT)
    assert sweep.end() == 130, sweep.output
    (mine / "tried.yaml").write_text(template.format(0.5))
    (sweep.folder / "go").touch()
    again = start(f"resume={sweep.folder}")
    assert again.end() == 0, again.output
    rates = [OmegaConf.load(sweep.folder / n / "config.yaml").optimizer.learning_rate for n in ("0", "1")]
    assert rates == [0.125, 0.125]


@pytest.mark.thorough
@pytest.mark.command
def test_all_jobs_are_checked_before_the_first_one_starts(start):
    mistakes = [
        (
            ["trainer.steps_per_epoch=20,30,5", "trainer.epochs=1,0", "trainer.steps_per_execution=10"],
            "trainer.epochs: is 0, must be 1 or more [job 1 (",
            "is 10, must be at most trainer.steps_per_epoch=5 [job 4 (",
        ),
        (
            ["trainer.epochs=1,2", "partitioner=none,nosuch", "modle=x"],
            "partitioner: there is no partitioner named 'nosuch'",
            "modle: no such key or group (value 'x'). Did you mean 'model'?",
        ),
        (["seed=1,2", "sweep.metric=val_auc"], "sweep.mode: is required with sweep.metric"),
        (["seed=1,2", "hydra.sweep.subdir=same"], "for jobs 0 and 1; give each job its own folder"),
        (["seed=1,2", "sweep.max_parallel=0"], "sweep.max_parallel: is 0, must be 1 or more"),
        (["hydra/sweeper=optuna", "seed=1,2"], "hydra/sweeper"),
    ]
    for arguments, *texts in mistakes:
        sweep = start(*arguments)
        assert sweep.end() == 2
        assert [text for text in texts if text not in sweep.output] == []
        assert "Ambiguous" not in sweep.output
        assert not sweep.folder.exists()


@pytest.mark.thorough
def test_sweeps_of_the_same_second_do_not_share_folders(tmp_path):
    commands = [[sys.executable, "-m", "psrun", "-m", f"seed={seed},3"] for seed in (1, 2)]
    environment = {**os.environ, **stood_in(tmp_path)}
    both = [subprocess.Popen(command, cwd=tmp_path, env=environment) for command in commands]
    assert [each.wait(90) for each in both] == [0, 0]
    assert len(list((tmp_path / "runs").glob("*-sweep-*/sweep.json"))) == 2
    assert len(list((tmp_path / "runs").glob("*-sweep-*/*/run.json"))) == 4


@pytest.mark.thorough
def test_a_metric_that_no_job_has_is_reported(start):
    sweep = start("seed=1,2,3", "sweep.metric=val_acu", "sweep.mode=max", "sweep.max_parallel=1")
    assert sweep.end() == 2
    assert "sweep.metric: no job has a metric 'val_acu'. Did you mean 'val_auc'? Resume the sweep with" in sweep.output
    assert [*sweep.results()] == [0]  # the others would not have it either
    again = start(f"resume={sweep.folder}", "sweep.metric=val_auc")
    assert again.end() == 0, again.output
    assert [job["metric"] for job in again.record["jobs"]] == [0.01, 0.02, 0.03]
    assert "best: val_auc 0.03" in again.output
    third = start(f"resume={sweep.folder}")
    assert third.end() == 0, third.output
    assert third.record["metric"] == "val_auc"
    assert "nothing to do" in third.output


@pytest.mark.command
def test_a_terminal_sees_a_sweep_and_ctrl_c_ends_it(tmp_path):
    import pexpect  # the test extra brings it

    child = pexpect.spawn(
        sys.executable, ["-m", "psrun", "-m", "seed=1,2,3", LONG, "sweep.max_parallel=2", "hydra.sweep.dir=sweep"],
        cwd=tmp_path, env={**os.environ, **stood_in(tmp_path)}, dimensions=(40, 140), timeout=60, encoding="utf-8",
    )  # fmt: skip
    try:
        child.expect(r"0  *seed=1  *\S*running")
        child.expect("3 jobs: ")
        child.sendintr()
        child.expect("repeat to exit immediately")
        child.expect(r"interrupted.*interrupted.*waiting")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 130
    finally:
        child.close(force=True)


# -- the command, with real jobs

TINY = ["model=dense", "optimizer=sgd", "cluster=none", "evaluation=none", "trainer.steps_per_epoch=10",
        "data.num_train_examples=500"]  # fmt: skip


@pytest.mark.thorough
def test_plans_of_a_sweep_are_made_in_one_process(psrun, tmp_path):
    sweep = f"hydra.sweep.dir={tmp_path / 'sweep'}"
    done = psrun(
        "-m", "mode=plan", "cluster.num_ps=1,2", "partitioner=fixed_shards", "partitioner.num_shards=2,9", sweep
    )
    assert done.code == 2
    assert done.stderr.count("more than the 8 rows of embedding") == 2
    assert "job 1 (cluster.num_ps=1 partitioner.num_shards=9)" in done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    job = ["0", "num_ps=1", "num_shards=2", "500"]
    assert [*job, "30.7", "kB", "ps-0", "30.7", "kB", "17.0", "kB", "17.0", "kB"] in rows
    alone = psrun("mode=plan", "cluster.num_ps=1", "partitioner=fixed_shards", "partitioner.num_shards=2").result
    one_of = json.loads((tmp_path / "sweep" / "0" / "run.json").read_text())
    for key in ("status", "mode", "placement", "bytes_per_step", "bytes_per_step_by_task"):
        assert one_of[key] == alone[key]
    assert one_of["overrides"][0] == "mode=plan"
    for number in range(4):
        check_rebuilt(tmp_path / "sweep" / str(number))


@pytest.mark.thorough
def test_four_jobs_two_failures_and_an_interruption_end_complete(start):
    one = "sweep.max_parallel=1"  # so that there are jobs left
    sweep = start("optimizer.learning_rate=0.01,1e30", "seed=1,2", "trainer.epochs=2", *TINY, one, real=True)

    def over() -> int:
        return sum(result["status"] in ("completed", "failed") for result in sweep.results().values())

    sweep.wait(lambda: over() >= 1, "a job that is over", within_s=300)
    sweep.send(signal.SIGINT)
    assert sweep.end() == 130, sweep.output
    before = sweep.results()
    assert len(before) < 4
    logs = [sweep.folder / str(number) / "logs" / "console.log" for number in before]
    assert not any("to resume" in log.read_text() for log in logs)  # the sweep resumes its jobs
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=10)
    again = start(f"resume={sweep.folder}", real=True)
    assert again.end(within_s=600) == 1, again.output
    after = again.results()
    assert [after[n]["status"] for n in range(4)] == ["completed"] * 2 + ["failed"] * 2
    assert {after[n]["error"]["type"] for n in (2, 3)} == {"NonFiniteLossError"}
    for number, result in before.items():
        if result["status"] == "completed":
            assert after[number] == result
    for number in range(4):
        check_rebuilt(again.folder / str(number))
    assert {result["steps"]["applied"] for n, result in after.items() if n not in (2, 3)} == {20}
    assert [job["status"] for job in again.record["jobs"]] == [after[n]["status"] for n in range(4)]
    table = again.output[again.output.rindex("job  overrides") :].partition("4 jobs:")[0]
    assert table.count("completed") == 2
    assert "the loss became" in " ".join(table.split())
    report = subprocess.run(
        [sys.executable, "-m", "psrun", "report", str(sweep.folder), "--json", "-"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    rows = json.loads(report.stdout)
    assert [row["status"] for row in rows] == [after[n]["status"] for n in range(4)]
    assert [bool(row["error"]) for row in rows] == [n in (2, 3) for n in range(4)]
