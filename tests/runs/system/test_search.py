"""`psrun -m sweep.search=...`: searches as a person starts, interrupts, kills and resumes them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from outcomes import check_rebuilt
from stood_in_jobs import Sweep, sweeps
from test_multirun import JOBLIB, SUBMITIT, needs_joblib, needs_submitit

from psrun import files

optuna = pytest.importorskip("optuna", minversion="5", reason="the extra psrun[optuna] is missing")
pytestmark = [pytest.mark.thorough, pytest.mark.command]
OBJECTIVE = ["sweep.metric=loss", "sweep.mode=min"]
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9)
GRID = ["sweep.search=grid", *OBJECTIVE, f"optimizer.learning_rate={','.join(map(str, RATES))}", "trainer.epochs=9"]
HALVING = ["sweep.halving.factor=3"]


@pytest.fixture
def start(tmp_path):
    """Starts sweeps; none of their processes outlives the test."""
    yield from sweeps(tmp_path)


def trials(folder: Path) -> list[Any]:
    """The trials of a search, as Optuna reads its journal."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "search.journal"))
    return optuna.load_study(study_name="search", storage=optuna.storages.JournalStorage(backend)).trials


def trained(sweep: Sweep) -> dict[float, list[int]]:
    """The epochs at which the jobs of each learning rate paused or ended, with replicates one after another."""
    found: dict[float, list[int]] = {}
    for number in sorted(results := sweep.results()):
        rate = next(each for each in results[number]["overrides"] if each.startswith("optimizer.learning_rate="))
        found.setdefault(float(rate.partition("=")[2]), []).extend(results[number]["trained"])
    return found


def test_losers_pause_and_winners_go_on(start):
    sweep = start(*GRID, *HALVING, "seed=1,2", "sweep.max_parallel=3")
    assert sweep.end() == 0, sweep.output
    best = {0.1: [1, 3, 9] * 2, 0.03: [1, 3] * 2, 0.01: [1, 3] * 2}
    assert trained(sweep) == {**{rate: [1, 1] for rate in RATES}, **best}
    statuses = {number: result["status"] for number, result in sweep.results().items()}
    assert [number for number, status in statuses.items() if status == "completed"] == [8, 9]
    states = {result["search"]["state"] for result in sweep.results().values() if result["search"]}
    assert states == {"pruned"}
    check_rebuilt(sweep.folder / "0")
    record = sweep.record
    assert (record["status"], record["search"]) == ("completed", "grid")
    assert [job["status"] for job in record["jobs"]].count("pruned") == 16
    assert record["jobs"][8]["rungs"] == pytest.approx({"1": 0.001, "3": 0.001 / 3})
    assert (
        "best configuration: optimizer.learning_rate=0.1  (loss 0.00016667, the mean of 2 seeds; job 8, 9)"
        in sweep.output
    )
    seen = trials(sweep.folder)
    assert [trial.state.name for trial in seen] == ["PRUNED"] * 4 + ["COMPLETE"] + ["PRUNED"] * 4
    assert seen[3].intermediate_values.keys() == {0, 1}
    again = start(f"resume={sweep.folder}")
    assert again.end() == 0, again.output
    assert "nothing to do" in again.output
    watch = [sys.executable, "-m", "psrun", "watch", str(sweep.folder)]
    assert subprocess.run(watch, timeout=60, capture_output=True, check=False).returncode == 0
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=10)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_search_that_ended_in_the_middle_goes_on(start, signum):
    sweep = start(*GRID, *HALVING, "sweep.max_parallel=2")
    sweep.wait(lambda: sum(job["status"] == "paused" for job in _jobs(sweep)) >= 3, "three paused jobs")
    sweep.send(signum)
    sweep.process.wait(60)
    paused = {
        n: result for n, result in sweep.results().items() if (result.get("search") or {}).get("state") == "paused"
    }
    assert len(paused) >= 3
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=20)
    record = sweep.record
    record["jobs"][0]["rungs"] = {}  # as if it had paused right before a kill
    (sweep.folder / "sweep.json").write_text(json.dumps(record))
    again = start(f"resume={sweep.folder}")
    assert again.end() == 0, again.output
    assert trained(again) == {**{rate: [1] for rate in RATES}, 0.1: [1, 3, 9], 0.03: [1, 3], 0.01: [1, 3]}
    assert all("1" in job["rungs"] for job in again.record["jobs"])
    running = [trial for trial in trials(sweep.folder) if trial.state.name == "RUNNING"]
    assert running == []


def test_a_job_that_a_person_has_resumed_is_waited_for(start):
    sweep = start(*GRID, *HALVING, "sweep.max_parallel=1")
    best = sweep.folder / "4"
    sweep.wait(lambda: any(job["number"] == 4 and job["status"] == "paused" for job in _jobs(sweep)), "paused job")
    lock = files.lock(best)
    assert lock is not None
    try:
        # With these values, it is sure to be among the best three, and goes on.
        sweep.wait(lambda: [job["status"] for job in _jobs(sweep)].count("paused") == 7, "seven paused jobs")
        sweep.wait(lambda: "job 4 waits for another process" in sweep.output, "message")
        assert json.loads((best / "run.json").read_text())["trained"] == [1]
    finally:
        os.close(lock)
    assert sweep.end() == 0, sweep.output
    assert trained(sweep)[0.1] == [1, 3, 9]


def _jobs(sweep: Sweep) -> list[dict[str, Any]]:
    return sweep.record["jobs"] if (sweep.folder / "sweep.json").exists() else []


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(JOBLIB, id="joblib", marks=needs_joblib),
        pytest.param(SUBMITIT, id="submitit_local", marks=needs_submitit),
    ],
)
def test_other_launchers_run_the_jobs_of_a_search(start, launcher):
    sweep = start(*GRID, *HALVING, "sweep.max_parallel=2", *launcher)
    assert sweep.end() == 0, sweep.output
    assert trained(sweep)[0.1] == [1, 3, 9]
    assert sorted(map(len, trained(sweep).values())) == [1] * 6 + [2, 2, 3]
    sweep.wait(lambda: not sweep.left(), "end of all processes", within_s=20)


def test_an_adaptive_search_varies_ranges_and_goes_over_failed_jobs(start):
    space = ["optimizer.learning_rate=tag(log,interval(0.001,1))", "data.global_batch_size=range(32,129,32)",
             "trainer.epochs=9", "seed=choice(1,13)", "sweep.max_parallel=2"]  # fmt: skip
    sweep = start("sweep.search=tpe", "sweep.num_trials=3", *OBJECTIVE, *space)
    assert sweep.end() == 1, sweep.output  # one seed of each configuration fails
    assert len(sweep.results()) == 6
    assert [trial.state.name for trial in trials(sweep.folder)] == ["FAIL"] * 3
    assert "best configuration" not in sweep.output
    sweep = start("sweep.search=random", "sweep.num_trials=2", *OBJECTIVE, *space[:3])
    assert sweep.end() == 0, sweep.output
    more = start(f"resume={sweep.folder}", "sweep.num_trials=3")
    assert more.end() == 0, more.output
    assert {n: result["times"] for n, result in more.results().items()} == {0: 1, 1: 1, 2: 1}
    assert len({result["overrides"][1] for result in more.results().values()}) == 3
    sweep = start("sweep.search=cmaes", "sweep.num_trials=3", *OBJECTIVE, *space[:3])
    assert sweep.end() == 0, sweep.output
    sweep = start("sweep.search=tpe", "sweep.num_trials=8", *OBJECTIVE, *space[:3], *HALVING)
    assert sweep.end() == 0, sweep.output
    for trial in trials(sweep.folder):
        assert 0.001 <= trial.params["optimizer.learning_rate"] <= 1
        assert trial.params["data.global_batch_size"] in (32, 64, 96, 128)
    assert {len(each) for each in trained(sweep).values()} == {1, 2}  # eight configurations can be halved once


def test_every_job_of_a_search_that_is_over_is_completed_failed_or_pruned(start):
    rates = "optimizer.learning_rate=0.9,0.1,0.2,0.8"
    sweep = start("sweep.search=grid", *OBJECTIVE, "trainer.epochs=2", "sweep.halving.factor=2", rates,
                  "seed=22", "sweep.max_parallel=1")  # fmt: skip
    assert sweep.end() == 0, sweep.output  # the first job has no value
    assert [job["status"] for job in _jobs(sweep)] == ["pruned", "completed", "completed", "pruned"]
    sweep = start("sweep.search=grid", *OBJECTIVE, "trainer.epochs=2", "sweep.halving.factor=2", rates,
                  "seed=1,13", "sweep.max_parallel=3")  # fmt: skip
    assert sweep.end() == 1, sweep.output
    assert [job["status"] for job in _jobs(sweep)] == ["pruned", "failed"] * 4
    sweep = start("sweep.search=grid", *OBJECTIVE, "optimizer.learning_rate=0.7,0.8", "seed=22", "trainer.epochs=2")
    assert sweep.end() == 2
    assert "'loss' is undefined (null) in every job" in sweep.output
    refused = start(f"resume={sweep.folder}", "sweep.num_trials=5")
    assert refused.end() == 2
    assert "sweep.num_trials: is '5', but was not set" in refused.output
    again = start(f"resume={sweep.folder}")  # which has not become one that cannot be resumed
    assert again.end() == 0, again.output


def test_more_trials_of_a_search_with_halving_are_compared_at_the_same_epochs(start):
    space = ["trainer.epochs=9", "optimizer.learning_rate=interval(0.1,1)"]
    sweep = start("sweep.search=random", *OBJECTIVE, *HALVING, *space, "sweep.num_trials=3")
    assert sweep.end() == 0, sweep.output
    worst = max(_jobs(sweep), key=lambda job: job["rungs"]["3"])
    shutil.rmtree(sweep.folder / worst["folder"])
    more = start(f"resume={sweep.folder}", "sweep.num_trials=9")  # new searches of nine would also pause after epoch 1
    assert more.end() == 0, more.output
    assert {epoch for each in trained(more).values() for epoch in each} == {3, 9}
    assert [job["status"] for job in _jobs(more)].count("completed") == 3
    assert _jobs(more)[worst["number"]] == worst
    record = more.record
    refused = start(f"resume={sweep.folder}", "sweep.num_trials=null")
    assert refused.end() == 2
    assert more.record == record


def test_a_metric_that_no_trial_has_ends_a_search(start):
    sweep = start("sweep.search=grid", "optimizer.learning_rate=0.1,0.2,0.3,0.4", "sweep.metric=auc", "sweep.mode=max",
                  "sweep.max_parallel=2")  # fmt: skip
    assert sweep.end() == 2
    assert "no job has a metric 'auc'" in sweep.output
    assert len(sweep.results()) <= 3  # and not all four
    again = start(f"resume={sweep.folder}", "sweep.metric=val_auc")
    assert again.end() == 0, again.output
    assert "best configuration" in again.output
    assert len(trained(again)) == 4
    refused = start(f"resume={sweep.folder}", "sweep.metric=loss")  # the search has chosen by the other one
    assert refused.end() == 2


def test_a_range_needs_a_search(start):
    sweep = start("optimizer.learning_rate=interval(0.1,1)")
    assert sweep.end() == 2
    assert "optimizer.learning_rate: is a range, of which only a search takes values" in sweep.output
    assert not sweep.folder.exists()


REAL = ["model=embedding", "sweep.search=grid", "sweep.metric=val_loss", "sweep.mode=min",
        "optimizer.learning_rate=0.003,1", "trainer.epochs=4", "trainer.steps_per_epoch=5"]  # fmt: skip


SIDECAR = ["cluster=local", "cluster.num_workers=1", "cluster.num_ps=1", "evaluation=sidecar"]


@pytest.mark.parametrize(
    "more",
    [["cluster=none"], ["cluster=none", "trainer=fit"], SIDECAR],
    ids=["custom_loop", "fit", "local-sidecar"],
)
def test_a_training_that_pauses_reaches_what_one_does_that_does_not(start, psrun, more):
    sweep = start(*REAL, *more, "sweep.halving.factor=2", real=True)
    assert sweep.end(within_s=240) == 0, sweep.output
    winner, loser = sweep.results()[1], sweep.results()[0]
    assert (winner["status"], loser["status"], loser["search"]["state"]) == ("completed", "interrupted", "pruned")
    assert (winner["steps"]["applied"], loser["steps"]["applied"]) == (20, 10)
    assert winner["evaluation"]["step"] == 20
    whole = psrun(*[each for each in REAL if not each.startswith(("sweep.", "optimizer."))], *more,
                  "optimizer.learning_rate=1")  # fmt: skip
    assert whole.code == 0, whole.stderr
    tolerance = 0.1 if "cluster=local" in more else 1e-6  # a resumed worker begins its data at another place
    assert winner["metrics"]["val_loss"] == pytest.approx(whole.result["metrics"]["val_loss"], rel=tolerance)
    if "cluster=local" in more:
        return
    resumed = psrun(f"resume={sweep.folder / '0'}")  # a person wants the rest of a pruned job
    assert resumed.code == 0, resumed.stderr
    goes_on = json.loads((sweep.folder / "0" / "run.json").read_text())
    assert (goes_on["status"], goes_on["steps"]["applied"], goes_on["search"]) == ("completed", 20, None)
