"""Sweeps: what is recorded, how many go at once, how they end and go on; jobs mostly without TensorFlow."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf
from rich.console import Console
from support import run_config

from psrun import files
from psrun.config.composition import Composer
from psrun.errors import ConfigError, Problem, SweepError
from psrun.results import task_files
from psrun.results.run_folder import RunFolder
from psrun.runs.sweeps import hydra_sweeps, jobs, runner
from psrun.runs.sweeps.sweep import END, KILL, TERMINATE, Job, Sweep, distinguishing
from psrun.runs.sweeps.sweep_state import SweepReader
from psrun.runs.watch.sweep import SweepMonitor, overview

GIB = 2**30


def planned(*each: Job) -> dict[int, Job]:
    return {job.number: job for job in each}


# -- how many at once


@pytest.mark.parametrize(
    ("overrides", "cores", "gib", "most"),
    [
        (["cluster=none"], 8, 64, 8),
        (["cluster=none"], 8, 3, 3),
        (["cluster=none"], 1, 0, 1),
        (["cluster=inprocess", "cluster.num_workers=4"], 8, 64, 2),
        (["cluster=local", "cluster.num_workers=2", "cluster.num_ps=3"], 64, 60, 10),
        (["cluster=local", "cluster.num_workers=2", "cluster.num_ps=3", "evaluation=sidecar_thread"], 64, 60, 10),
    ],
)
def test_jobs_at_once_follow_cores_and_memory(overrides, cores, gib, most):
    runs = [run_config("cluster=none"), run_config(*overrides)]
    assert jobs.jobs_at_once(runs, cores=cores, memory_bytes=gib * GIB) == most
    assert jobs.jobs_at_once([]) >= 1


def test_what_a_container_may_use_is_its_limit_without_files_that_were_read(tmp_path, monkeypatch):
    monkeypatch.setattr(task_files, "_CGROUP", tmp_path)
    monkeypatch.setattr(task_files, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(task_files.psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    run = [run_config("cluster=none")]
    assert jobs.jobs_at_once(run, cores=99) == 64
    (tmp_path / "memory.max").write_text(f"{16 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{14 * GIB}\n")
    assert jobs.jobs_at_once(run, cores=99) == 2
    (tmp_path / "memory.stat").write_text(f"anon {4 * GIB}\nfile {10 * GIB}\ninactive_file {9 * GIB}\n")
    assert jobs.jobs_at_once(run, cores=99) == 11
    (tmp_path / "memory.max").write_text("max\n")
    assert jobs.jobs_at_once(run, cores=99) == 64
    own = tmp_path / "job" / "task"  # as a scheduler limits a job on a machine
    own.mkdir(parents=True)
    (tmp_path / "own").write_text("0::/job/task\n")
    (own.parent / "memory.max").write_text(f"{8 * GIB}\n")
    (own.parent / "memory.current").write_text(f"{3 * GIB}\n")
    assert jobs.jobs_at_once(run, cores=99) == 5


def test_places_are_as_many_as_jobs_may_run_at_once(tmp_path):
    sweep = Sweep(tmp_path / "sweep", [], max_parallel=2)
    sweep.begin(again=False)
    taken = [sweep.take_slot(), sweep.take_slot()]
    assert None not in taken
    assert sweep.take_slot() is None
    assert sweep.has_running_jobs()
    for place in taken:
        os.close(place)
    assert not sweep.has_running_jobs()


def test_a_file_system_without_locks_has_room_for_every_job(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    sweep = Sweep(tmp_path / "sweep", [])
    sweep.begin(again=False)
    for slot in [sweep.take_slot(), sweep.take_slot()]:
        os.close(slot)
    assert sweep.has_running_jobs()  # as far as can be seen: a signal waits for them, for a bounded time


class StubbornJob:
    """A job that only SIGKILL ends; the user insists."""

    def __init__(self, sweep: Sweep, request: str) -> None:
        self._requests = [request, KILL]
        self._sweep = sweep
        self.signals: list[int] = []

    def wait(self, timeout: float | None = None) -> int:
        if signal.SIGKILL in self.signals:
            return -signal.SIGKILL
        assert self._requests, "the second signal is not passed on"
        self._sweep.request_end(self._requests.pop(0))
        raise subprocess.TimeoutExpired("job", timeout or 0.0)

    def send_signal(self, signum: int) -> None:
        self.signals.append(signum)


@pytest.mark.parametrize(("request_", "signum"), [(END, signal.SIGINT), (TERMINATE, signal.SIGTERM)])
def test_each_signal_is_passed_on_to_a_job(tmp_path, request_, signum):
    sweep = Sweep(tmp_path / "sweep", [])
    sweep.begin(again=False)
    job = StubbornJob(sweep, request_)
    assert jobs._await(job, sweep, elsewhere=False) == -signal.SIGKILL
    assert job.signals == [signum, signal.SIGKILL]


@pytest.mark.parametrize("cluster", ["slurm", "kubernetes", "tf_config", "static"])
def test_a_sweep_of_tasks_that_somebody_else_starts_is_refused(cluster):
    with pytest.raises(ConfigError) as raised:
        runner._require_whole(run_config(f"cluster={cluster}"))
    assert [problem.key for problem in raised.value.problems] == ["cluster"]


# -- the record


def test_a_folder_has_one_sweep(tmp_path):
    sweep = Sweep(tmp_path / "sweep", ["-m"])
    sweep.begin(again=False)
    with pytest.raises(ConfigError, match=r"resume: .*sweep is running; to follow it: psrun watch "):
        Sweep(tmp_path / "sweep", ["-m"]).begin(again=True)
    over = tmp_path / "over"
    over.mkdir()
    (over / "sweep.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a sweep already"):
        Sweep(over, ["-m"]).begin(again=False)
    with pytest.raises(ConfigError, match=r"hydra.sweep.dir: .* cannot be created or written to: Not a directory"):
        Sweep(over / "sweep.json" / "sweep", ["-m"]).begin(again=False)


def planned_sweep(path: Path, *statuses: str) -> Sweep:
    """A sweep in which a job has a plan with each of these statuses."""
    jobs_of_it = [Job(number, [f"seed={number}"], str(number), status=status) for number, status in enumerate(statuses)]
    sweep = Sweep(path, ["-m"], status="completed", jobs=planned(*jobs_of_it))
    for job in jobs_of_it:
        folder = RunFolder.create(sweep.folder(job), raw={})
        folder.emit("begun", mode="plan", started_s=0.0, overrides=job.overrides)
        folder.emit("ended", status=job.status, exit_code=0, wall_s=1.0)
    sweep.write()
    return sweep


def test_a_sweep_replaces_plans(tmp_path):
    before = planned_sweep(tmp_path / "sweep", "completed", "failed")
    (before.path / "notes.txt").touch()
    (before.path / "1" / "notes.txt").touch()
    sweep = Sweep(before.path, ["-m", "seed=7"])
    sweep.begin(again=False)
    assert Sweep.read(sweep.path).arguments == ["-m", "seed=7"]
    files_left = {path.relative_to(sweep.path).as_posix() for path in sweep.path.rglob("*") if path.is_file()}
    assert files_left == {"sweep.json", "notes.txt", "1/notes.txt"}


def test_a_sweep_replaces_no_job_that_was_trained(tmp_path):
    before = planned_sweep(tmp_path / "sweep", "completed", "completed")
    RunFolder(before.path / "1").emit("begun", mode="train", started_s=0.0, overrides=[])
    with pytest.raises(ConfigError, match="holds a sweep already"):
        Sweep(before.path, ["-m"]).begin(again=False)
    assert RunFolder(before.path / "0").holds_plan
    assert not before.holds_plans


def test_a_sweep_replaces_no_plan_whose_folder_another_process_has_locked(tmp_path):
    before = planned_sweep(tmp_path / "sweep", "completed")
    descriptor = files.lock(before.path / "0")
    assert descriptor is not None
    try:
        with pytest.raises(ConfigError, match="in use"):
            Sweep(before.path, ["-m"]).begin(again=False)
    finally:
        os.close(descriptor)
    assert before.holds_plans


def test_a_resumed_sweep_of_plans_says_that_nothing_was_trained(tmp_path, capsys):
    before = planned_sweep(tmp_path / "sweep", "completed")
    assert runner.SweepRunner([], before).has_nothing_to_do()
    said = " ".join(capsys.readouterr().out.split())
    assert "are planned, not trained; to train them, repeat the command of the sweep with train" in said
    assert "nothing to do" not in said


def test_a_sweep_is_read_as_it_was_written(tmp_path):
    sweep = Sweep(tmp_path / "sweep", ["-m", "seed=1,2"], metric="val_auc", mode="max", max_parallel=3)
    sweep.begin(again=False)
    sweep.plan(planned(Job(0, ["seed=1"], "0"), Job(1, ["seed=2"], "1")))
    sweep.update([replace(sweep.jobs[1], status="failed", error="no luck")])
    sweep.end("failed")
    read = Sweep.read(sweep.path)
    assert (read.arguments, read.metric, read.max_parallel, read.status) == (["-m", "seed=1,2"], "val_auc", 3, "failed")
    assert read.jobs == sweep.jobs


@pytest.mark.parametrize("text", [None, "", "[]", '{"jobs": []}', '{"psrun": "9", "jobs": [{}]}'])
def test_a_folder_without_a_sweep_is_reported(tmp_path, text):
    if text is not None:
        (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(ConfigError, match="resume: there is no sweep in"):
        hydra_sweeps.resumed(["-m", f"resume={tmp_path}"])


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(SweepError, match=r"cannot be written to: .*No space left on device"):
        Sweep(tmp_path / "sweep", []).begin(again=False)


def test_other_arguments_than_at_the_start_are_named(tmp_path):
    sweep = Sweep(tmp_path, ["--config-dir", "own", "-m", "seed=1,2", "model=dense", "sweep.max_parallel=2"])
    sweep.begin(again=False)
    resume = f"resume={tmp_path}"
    _, arguments = hydra_sweeps.resumed(["-m", resume, "seed=1,2", "sweep.max_parallel=1", "hydra/launcher=joblib"])
    assert arguments == [
        "--config-dir", "own", "-m", "seed=1,2", "model=dense", "sweep.max_parallel=1", "hydra/launcher=joblib",
        f"hydra.sweep.dir='{tmp_path}'",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as raised:
        hydra_sweeps.resumed(["-m", resume, "seed=1,2,3", "trainer.epochs=2"])
    assert [line.partition("; ")[0] for line in str(raised.value).splitlines()] == [
        "seed: is '1,2,3', but was '1,2' when the sweep started",
        "trainer.epochs: is '2', but was not set when the sweep started",
    ]


# -- how jobs are


def job_folder(path: Path, **result) -> Path:
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(result))
    return path


def test_how_a_job_is_by_its_folder(tmp_path):
    sweep = Sweep(tmp_path, [], started_s=time.time() - 5)
    sweep.plan(planned(*(Job(number, [], name) for number, name in enumerate(("none", "done", "failed", "begun")))))

    def states(search: str | None = None) -> dict[str, str]:
        sweep.search = search
        state = SweepReader(tmp_path, sweep=sweep).look()
        return {job.folder: job.status for job in state.jobs}

    done = job_folder(tmp_path / "done", status="completed", metrics={"loss": 1.0}, wall_s=3.0, exit_code=0)
    failed = job_folder(tmp_path / "failed", status="failed", exit_code=1, error={"message": "first\nsecond"})
    (tmp_path / "begun" / "logs").mkdir(parents=True)
    (tmp_path / "begun" / "logs" / "console.log").touch()
    assert states() == {"none": "waiting", "done": "completed", "failed": "failed", "begun": "starting"}
    for folder in (done, failed):
        os.utime(folder / "run.json", (1, 1))  # of a start before this one
    assert states() == {"none": "waiting", "done": "completed", "failed": "waiting", "begun": "starting"}
    assert states(search="tpe")["failed"] == "failed"


def test_jobs_are_distinguished_by_overrides_that_not_all_have(tmp_path):
    assert distinguishing([["a=1", "b=1"], ["a=1", "b=2"]]) == [["b=1"], ["b=2"]]
    assert distinguishing([["a=1", "b=1"]]) == [["a=1", "b=1"]]
    resumed = [["a=1", "sweep.max_parallel=2"], ["a=2", "sweep.max_parallel=3"]]
    assert distinguishing(resumed) == [["a=1"], ["a=2"]]
    search = Sweep(tmp_path, ["sweep.max_parallel=2"], search="tpe")
    search.jobs = {number: Job(number, each, str(number)) for number, each in enumerate(resumed)}
    assert [job.apart for job in SweepReader(tmp_path, sweep=search).look().jobs] == ["a=1", "a=2"]
    sweep = Sweep(tmp_path, [], metric="val_auc", mode="max", started_s=0.0)
    sweep.plan(planned(*(Job(number, [], str(number)) for number in range(3))))
    for number, (status, metric) in enumerate([("completed", 0.5), ("completed", 0.7), ("failed", 0.9)]):
        job_folder(tmp_path / str(number), status=status, metrics={"val_auc": metric})
    best = SweepReader(tmp_path).look().best
    assert best is not None
    assert best.number == 1


BEST = {"metric": "val_auc", "mode": "max", "step": 10}


def test_jobs_are_ranked_by_their_best_checkpoints_if_these_are_compared_by_the_metric(tmp_path):
    """In the table, the best one first, and in sweep.json; a search learns the same value."""
    sweep = Sweep(tmp_path, [], metric="val_auc", mode="max", started_s=0.0)
    names = ["0", "1", "2", "3", "4"]
    sweep.plan(planned(*(Job(int(name), [f"x={name}"], name) for name in names)))
    done = {"status": "completed", "wall_s": 1.0}
    job_folder(tmp_path / "0", **done, metrics={"val_auc": 0.5}, best_checkpoint={**BEST, "value": 0.9})
    job_folder(tmp_path / "1", **done, metrics={"val_auc": 0.7}, best_checkpoint={**BEST, "value": 0.8})
    job_folder(tmp_path / "2", status="failed", metrics={"val_auc": 0.99})
    job_folder(tmp_path / "3", **done, metrics={"val_auc": 0.85})  # it has no checkpoint
    paused = {"status": "interrupted", "search": {"state": "pruned", "epoch": 1}}
    job_folder(tmp_path / "4", **paused, metrics={"val_auc": 0.1}, best_checkpoint={**BEST, "value": 0.95})
    state = SweepReader(tmp_path, sweep=sweep).look()
    assert [job.folder for job in state.ranked] == ["0", "3", "1", "4", "2"]
    assert state.best.folder == "0"
    sweep.update(state.jobs)
    assert [sweep.jobs[number].metric for number in (0, 1, 3)] == [0.9, 0.8, 0.85]
    assert sweep.value(tmp_path / "0") == 0.9
    console = Console(file=io.StringIO(), width=200)
    SweepMonitor(sweep, console).result()
    head, *lines = console.file.getvalue().splitlines()
    assert "best val_auc" in head
    assert [line.split()[0] for line in lines[:5]] == ["0", "3", "1", "4", "2"]
    assert lines[0].split()[3:5] == ["0.9", "best"]
    by_least = replace(state, mode="min")  # checkpoints are compared by the greatest value
    assert by_least.best.folder == "0"
    assert by_least.value(by_least.best) == 0.5


def test_a_sweep_without_a_metric_is_ranked_by_the_one_of_its_checkpoints(tmp_path):
    sweep = Sweep(tmp_path, [], started_s=0.0)
    sweep.plan(planned(*(Job(number, [], str(number)) for number in range(3))))
    for number, (loss, best) in enumerate([(0.3, 0.8), (0.5, 0.9)]):
        metrics = {"val_loss": loss, "val_auc": 0.1}
        job_folder(tmp_path / str(number), status="completed", metrics=metrics, best_checkpoint={**BEST, "value": best})
    state = SweepReader(tmp_path, sweep=sweep).look()
    assert (state.metric, state.mode, state.best.number) == ("val_auc", "max", 1)
    sweep.update(state.jobs)
    assert [sweep.jobs[number].metric for number in (0, 1)] == [0.8, 0.9]
    job_folder(tmp_path / "2", status="completed", metrics={"val_loss": 0.1})
    state = SweepReader(tmp_path, sweep=sweep).look()
    assert (state.metric, state.mode, state.best.number) == ("val_loss", "min", 2)


@pytest.mark.parametrize(
    ("apart", "winner", "last"),
    [
        (["seed=1", "seed=2"], None, "to see the spread: psrun report sweep"),
        (["rate=1", "rate=2"], None, "to train the best again: psrun --config-dir conf model=dense 'a=[1, 2]' rate=2"),
        (
            ["rate=1 seed=1", "rate=2 seed=2"],
            None,
            "to train the best again: psrun --config-dir conf model=dense 'a=[1, 2]' rate=2 seed=2",
        ),
        (["rate=1", "rate=2"], ["rate=3"], "to train the best again: psrun --config-dir conf rate=3"),
    ],
)
def test_a_sweep_ends_with_the_next_command(tmp_path, monkeypatch, capsys, apart, winner, last):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner.process, "outlive_stdout", lambda stream: None)
    arguments = ["--config-dir", "conf", "-m", "model=dense", "a=[1, 2]", "rate=1,2", "sweep.metric=val_auc"]
    running = runner.SweepRunner(arguments, None)
    running.begin(tmp_path / "sweep", keys={"metric": "val_auc", "mode": "max", "max_parallel": "auto"})
    common = ["model=dense", "a=[1, 2]"]
    fixed = ["sweep.metric=val_auc", "run.name=name", "hydra.sweep.dir=sweep"]
    running.sweep.plan(planned(*(Job(n, [*common, *each.split(), *fixed], str(n)) for n, each in enumerate(apart))))
    for number in (0, 1):
        job_folder(tmp_path / "sweep" / str(number), status="completed", metrics={"val_auc": 0.5 + number / 10})
    if winner is not None:
        running.conclude("best configuration: rate=3", winner)
    assert running.end(None) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == last
    has_best_job = "again" in last and winner is None
    assert ("to use the best: psrun predict sweep/1, psrun export sweep/1" in lines) == has_best_job
    # The best job has one seed only.
    assert ("to see the means over seeds: psrun report sweep" in lines) == (apart[0] == "rate=1 seed=1")


def test_a_terminal_sees_a_row_a_job_and_the_best_so_far(tmp_path):
    sweep = Sweep(tmp_path, [], metric="val_auc", mode="max", started_s=0.0)
    sweep.plan(planned(*(Job(number, ["model=dense", f"x=[{number}]"], str(number)) for number in range(30))))
    job_folder(tmp_path / "0", status="completed", metrics={"val_auc": 0.75}, wall_s=3.0)
    job_folder(tmp_path / "1", status="running")
    (tmp_path / "1" / ".tasks").mkdir()
    progress = {"epoch": 1, "epochs": 2, "step": 10, "steps": 40, "steps_per_s": 5.0, "examples_per_s": 50.0,
                "loss": 0.5, "metrics": {"val_auc": 0.5}}  # fmt: skip
    beat = {"pid": 1, "at_s": 1.0, "state": "training", "progress": progress}
    (tmp_path / "1" / ".tasks" / "chief-0.json").write_text(json.dumps(beat))
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100, height=20)
    console.print(overview(SweepReader(tmp_path, sweep=sweep).look(), console, 14))
    shown = console.file.getvalue()
    head, first, *_ = shown.splitlines()
    assert head.split() == ["job", "overrides", "state", "epoch", "step", "steps/s", "val_auc"]
    assert first.split() == ["1", "x=[1]", "training", "1/2", "10/40", "5", "0.5"]
    assert "and 16 more: 15 waiting, 1 completed" in shown
    assert "30 jobs: 1 completed, 1 running, 28 waiting; best so far: val_auc 0.75, job 0  x=[0]" in shown
    assert len(shown.splitlines()) < 20


def test_a_narrow_terminal_shows_the_running_jobs_in_whole_words(tmp_path):
    sweep = Sweep(tmp_path, [], metric="val_auc", mode="max", started_s=0.0)
    kinds = ("bounded_delay", "ssp", "sync")
    values = [(workers, kind, seed) for workers in (2, 4) for kind in kinds for seed in (1, 2, 3)]
    jobs = []
    for number, (workers, kind, seed) in enumerate(values):
        overrides = [f"cluster.num_workers={workers}", f"consistency={kind}", f"seed={seed}", "model=dlrm"]
        jobs.append(Job(number, overrides, str(number)))
    sweep.plan(planned(*jobs))
    for number in range(18):
        status = "completed" if number < 15 else "running"
        job_folder(tmp_path / str(number), status=status, metrics={"val_auc": 0.75}, wall_s=3.0)
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=60, height=20)
    console.print(overview(SweepReader(tmp_path, sweep=sweep).look(), console, 14))
    lines = console.file.getvalue().splitlines()
    numbers = [line.split()[0] for line in lines if line[:3].strip().isdigit()]
    assert numbers[:3] == ["15", "16", "17"]
    words = {word for line in lines for word in line.split()}
    assert {"num_workers=4", "consistency=sync", "seed=3"} <= words
    assert any(line.startswith("and ") and line.endswith(" completed") for line in lines)
    assert len(lines) <= 20


def test_elsewhere_lines_show_what_is_new(tmp_path):
    sweep = Sweep(tmp_path, [], started_s=0.0)
    sweep.plan(planned(Job(0, ["x=[a]"], "0"), Job(1, ["x=2"], "1")))
    job_folder(tmp_path / "0", status="completed", metrics={"loss": 0.75, "auc": 1.0}, wall_s=3.0)
    job_folder(tmp_path / "1", status="failed", exit_code=1, error={"message": "no [luck]\nat all"})
    console = Console(file=io.StringIO(), width=200)
    view = SweepMonitor(sweep, console)
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
        ["2", "jobs:", "1", "completed,", "1", "failed;", "best:", "loss", "0.75,", "job", "0", "x=[a]"],
    ]


def test_plans_of_a_sweep_are_one_table(tmp_path):
    sweep = Sweep(tmp_path, [])
    sweep.plan(planned(Job(0, ["model.x=1"], "0"), Job(1, ["model.x=2"], "1")))
    sweep.max_parallel = 3
    placement = [{"task": "ps-0", "bytes": 2000}, {"task": "ps-1", "bytes": 1000}, {"task": "chief-0", "bytes": 10}]
    job_folder(tmp_path / "0", status="completed", placement=placement, num_steps=1200,
               bytes_per_step={"read_bytes": 100, "pushed_bytes": 200})  # fmt: skip
    job_folder(tmp_path / "1", status="failed", error={"message": "too large"})
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(ConfigError, match=r"job 1 \(model.x=2\): too large"):
        jobs.show_plans(sweep, console)
    lines = [re.split(r" {2,}", line.strip()) for line in console.file.getvalue().splitlines()]
    assert lines[1] == ["job", "overrides", "steps", "on each ps", "fullest task", "read", "pushed"]
    assert lines[2] == ["0", "x=1", "1,200", "2.0 kB, 1.0 kB", "ps-0 2.0 kB", "100 bytes", "200 bytes"]
    assert ["2 jobs, at most 2 at once."] in lines


def test_jobs_with_the_same_choices_are_composed_once(tmp_path, monkeypatch, compositions):
    """Hydra itself composes each job twice."""
    monkeypatch.setattr(hydra_sweeps.jobs, "run", lambda folder, sweep, elsewhere, start_process: None)
    monkeypatch.setattr("psrun.runs.sweeps.runner.SignalHandler.install", lambda self: None)
    monkeypatch.setattr("psrun.runs.sweeps.runner.SweepRunner.start_fork_server", lambda self: None)
    monkeypatch.setattr("psrun.process.outlive_stdout", lambda terminal: None)
    monkeypatch.setattr(hydra_sweeps, "_end_workers", lambda: None)  # it ends what other tests need, as Keras 3's trees
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    subdir = "hydra.sweep.subdir=${hydra:job.num}/${now:%f}"  # is the same where the job is checked and where it runs
    arguments = ["-m", "seed=1,2", "model=dense,embedding", "hydra.sweep.dir=sweep", subdir]
    monkeypatch.setattr(sys, "argv", ["psrun", *arguments])
    hydra_sweeps.run(arguments)
    assert len(compositions) == 1 + 2  # for the sweep as a whole, and for each model
    folders = sorted(tmp_path.glob("sweep/?/*"))
    assert len({(folder / "config.yaml").read_text() for folder in folders}) == len(folders) == 4
    own = OmegaConf.load(folders[3] / ".hydra" / "hydra.yaml").hydra
    assert (own.job.num, own.runtime.output_dir) == (3, str(folders[3]))
    assert own.overrides.task == ["seed=2", "model=embedding"]


def test_each_wrong_value_of_a_sweep_is_reported():
    problems = hydra_sweeps._problems(
        ["-m", "model=dnse,cn,dense", "optimizer=glob(s*)", "trainer.epohcs=2", "seed=[1"]
    )
    assert [(problem.key, problem.message.partition(".")[0]) for problem in problems[:4]] == [
        ("model", "there is no model named 'dnse'"),
        ("seed", "has the value [1, which cannot be read at '[1': close each bracket and quote, and quote text"),
        ("model", "there is no model named 'cn'"),
        ("trainer.epohcs", "no such key or group (value '2')"),
    ]
    assert len(problems) == 4
    given = ["-m", "model=dnes", "model.hidden_units=[8],[9]", "seed=x,1", "+tracker=none,mlflow"]
    assert [problem.key for problem in hydra_sweeps._problems(given)] == ["model", "tracker", "seed"]
    given = ["-m", "tracker=none", "tracker=mlflow,none"]
    message = "is chosen twice, as none and as mlflow,none; keep one of them"
    assert [problem.message for problem in hydra_sweeps._problems(given)] == [message]


def test_a_key_that_does_not_exist_is_one_mistake_of_a_sweep_whatever_its_values(monkeypatch, compositions):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    problems = hydra_sweeps._problems(["-m", "trainer.epoch=1,2,3", "trainer.epochs=1,0"])
    assert [problem.key for problem in problems] == ["trainer.epoch", "trainer.epochs"]
    assert len(compositions) == 1


@pytest.mark.parametrize(
    ("arguments", "are_basic"),
    [
        ([], (True, True)),
        (["hydra.launcher._target_=hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"], (True, False)),
        (["--config-dir", "own", "hydra/launcher=mine"], (True, True)),
        (["hydra.sweeper._target_=own.Search"], (False, True)),
    ],
)
def test_a_plug_in_counts_by_its_class_not_by_the_name_of_its_choice(tmp_path, monkeypatch, arguments, are_basic):
    file = tmp_path / "own" / "hydra" / "launcher" / "mine.yaml"
    file.parent.mkdir(parents=True)
    target = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
    file.write_text(f"# @package hydra.launcher\n_target_: {target}\n")
    monkeypatch.chdir(tmp_path)
    hydra = Composer.create(arguments).compose([*arguments, "hydra.mode=MULTIRUN"], mode=RunMode.MULTIRUN).hydra
    assert (hydra_sweeps._is_basic(hydra.sweeper), hydra_sweeps._is_basic(hydra.launcher)) == are_basic


def test_a_sweep_is_split_in_jobs():
    jobs = hydra_sweeps._expanded(["-m", "a=1,2", "b=choice(3,4)", "c=5", "d=interval(0,1)"])
    assert jobs == [
        ["-m", "a=1", "b=3", "c=5"], ["-m", "a=1", "b=4", "c=5"], ["-m", "a=2", "b=3", "c=5"],
        ["-m", "a=2", "b=4", "c=5"],
    ]  # fmt: skip


def test_a_key_of_some_choices_of_a_sweep_names_a_sweep_for_each(monkeypatch):
    choice = "consistency=async,bounded_delay,sync"
    (problem,) = hydra_sweeps._problems(["-m", choice, "consistency.max_delay=2"])
    assert problem.key == "consistency.max_delay"
    assert problem.message.startswith("is a key of consistency=bounded_delay, and not of async,sync; write a sweep")
    assert "hydra.sweep.dir=runs/STUDY/bounded_delay" in problem.message
    assert hydra_sweeps._problems(["-m", choice, "+consistency.max_delay=2"]) == [problem]
    (other,) = hydra_sweeps._problems(["-m", "consistency=async,sync", "consistency.max_delay=2"])
    assert other.message.startswith("no such key")

    def composes(*_: object) -> None:
        raise ConfigError([Problem("consistency.max_delay", "exists already; write it without +")])

    monkeypatch.setattr(hydra_sweeps, "_sweep", composes)
    with pytest.raises(ConfigError) as raised:
        hydra_sweeps.run(["-m", choice, "+consistency.max_delay=2"])
    assert raised.value.problems == [problem]


def test_a_sweep_that_is_planned_says_first_how_many_jobs_it_has(tmp_path, monkeypatch, capsys):
    running = runner.SweepRunner([], None)
    running._sweep = planned_sweep(tmp_path / "sweep", "completed", "completed")
    said = []
    monkeypatch.setattr(jobs, "plan", lambda sweep: said.append(capsys.readouterr().out))
    running.plan()
    assert said == ["planning 2 jobs\n"]
