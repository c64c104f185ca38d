"""`psrun watch`: runs and sweeps seen from outside, as folders that grow, end, vanish or never were."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import bounds
import psutil
import pytest
from fault_injection import Cluster
from recorded_runs import a_run, a_sweep
from rich.console import Console

from psrun import process
from psrun.config.groups import resume_folder
from psrun.config.topology import Task
from psrun.errors import ConfigError, ExitCode, PsrunError
from psrun.results import run_folder, run_state, task_files
from psrun.results.console import ConsoleSink
from psrun.results.events import EventReader
from psrun.results.task_files import Heartbeat, Usage
from psrun.runs.sweeps.sweep_state import SweepReader
from psrun.runs.watch import run, sweep
from psrun.runs.watch.commands import main

BOUND_S = 10.0
QUICK = ["data.num_train_examples=500", "data.num_eval_examples=100", "trainer.epochs=2", "trainer.steps_per_epoch=20"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Looks fifty times a second, and knows sooner that nothing more comes; main sets a handler of SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    for module in (run, sweep):
        monkeypatch.setattr(module, "EVERY_S", 0.02)
    monkeypatch.setattr(run, "_PATIENCE_S", 0.1)
    monkeypatch.setattr("psrun.runs.sweeps.sweep_state.BETWEEN_JOBS_S", 0.2)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_run_is_awaited_by_its_name(tmp_path, monkeypatch, capsys):
    a_run(tmp_path / "runs" / "other")
    monkeypatch.chdir(tmp_path)
    named = run_state.find_named
    words: list[str] = []

    def named_later(word: str) -> Path | None:
        words.append(word)
        if len(words) == 3:  # it has looked twice while the run was not there
            run_folder.write_name(a_run(tmp_path / "runs" / "new"), "first")
        return named(word)

    monkeypatch.setattr(run_state, "find_named", named_later)
    assert main(["first", "--wait", "60"]) == 0
    assert "first" in capsys.readouterr().out


def changed(folder: Path, **values: object) -> None:
    file = folder / "run.json"
    new = file.with_name(".new")
    new.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    new.replace(file)


def line(kind: str, step: int, **data: object) -> str:
    return json.dumps({"event": kind, "step": step, "wall_s": 1.0, **data}) + "\n"


def epoch(number: int, loss: float | None = 0.25) -> str:
    rates = {"steps_per_s": 50.0, "examples_per_s": 3200.0}
    return line("epoch", 100 * number, epoch=number, epochs=20, metrics={"loss": loss}, **rates)


def append(folder: Path, text: str) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text)


def beat(folder: Path, name: str, *, pid: int = 0, at_s: float | None = None, **values: object) -> None:
    job, _, index = name.rpartition("-")
    file = task_files.path(folder, Task(job, int(index)))
    file.parent.mkdir(exist_ok=True)
    at_s = time.time() if at_s is None else at_s
    file.write_text(json.dumps(vars(Heartbeat(pid, at_s, **{"state": "serving", **values}))))
    os.utime(file, (at_s, at_s))


def aged(folder: Path, age_s: float) -> None:
    """Makes all that is in a folder look as if it had been written long ago."""
    for file in [each for each in folder.rglob("*") if each.is_file()]:
        os.utime(file, (time.time() - age_s,) * 2)


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


class Watching:
    """The view of a folder, in a thread, on a terminal or not, and what it has printed so far."""

    def __init__(self, path: Path, *, terminal: bool = False, **options: object) -> None:
        self._text = io.StringIO()
        console = Console(file=self._text, width=160, height=40, force_terminal=terminal, color_system=None)
        is_run = (path / "metrics.jsonl").exists() or (path / "run.json").exists()
        kind = run.RunView if is_run else sweep.SweepView
        defaults = {"wait_s": 0.0} if is_run else {"metric": None, "mode": None}
        self._view = kind(path, console, **{**defaults, **options})
        self.code, self.error = None, None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            self.code = self._view.follow()
        except PsrunError as error:
            self.error = error

    @property
    def text(self) -> str:
        return self._text.getvalue()

    def until(self, text: str) -> None:
        deadline_s = time.monotonic() + BOUND_S
        while text not in self.text:
            assert time.monotonic() < deadline_s, f"no '{text}' in {self.text}"
            time.sleep(0.01)

    def end(self) -> None:
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), self.text


@pytest.fixture
def running(tmp_path) -> Path:
    """A run of this process that goes on."""
    folder = a_run(tmp_path / "run", status="running", exit_code=None)
    changed(folder, process=process.this_process())
    (folder / "metrics.jsonl").write_text(epoch(1))
    return folder


# -- following metrics.jsonl


def test_a_metric_that_was_nan_is_reported(tmp_path):
    """JSON has null for it: the supervisor reads its chief's events back from there."""
    text = io.StringIO()
    (tmp_path / "metrics.jsonl").write_text(epoch(1, loss=None))
    sink = ConsoleSink(Console(file=text, width=120))
    for event in EventReader(tmp_path / "metrics.jsonl").read():
        sink.event(event)
    sink.close()
    assert "loss nan" in text.getvalue()


# -- one run


def test_a_run_that_continues_is_followed_to_its_end_also_in_a_new_file(running):
    watching = Watching(running)
    watching.until("epoch 1/20  step 100")
    append(running, epoch(2)[:20])
    append(running, epoch(2)[20:] + line("warning", 200, message="something is odd"))
    watching.until("something is odd")
    (running / "metrics.jsonl").unlink()
    time.sleep(0.1)
    append(running, epoch(3))
    watching.until("epoch 3/20")
    assert "metrics.jsonl was replaced" in watching.text
    own = {"steps": 200, "seconds": 1.0}
    fields = {"metrics": {"loss": 0.1}, "time_to_first_step_s": 1.0, "step_time": None, "this_process": own}
    append(running, line("end", 200, **fields))
    changed(running, status="completed", exit_code=0)
    watching.end()
    assert watching.code == ExitCode.DONE
    once = ("epoch 1/20", "epoch 2/20", "epoch 3/20", "completed 200 steps")
    assert [text for text in once if watching.text.count(text) != 1] == []


def test_a_terminal_sees_the_tasks_and_the_progress(running):
    progress = {"epoch": 2, "epochs": 20, "step": 150, "steps": 2000, "steps_per_s": 50.0, "examples_per_s": 3200.0}
    append(running, line("failure", 120, task="ps-0", cause="x", action="restarting ps-0", restarted=["ps-0"]))
    beat(running, "chief-0", state="training", step=150, progress={**progress, "loss": 0.2, "metrics": {}}, pid=1)
    used = Usage(time.time(), 1.0, 5_000_000, 0, 0)
    beat(running, "ps-0", usage=vars(used))
    beat(running, "worker-1", at_s=time.time() - 20, usage=vars(used))
    watching = Watching(running, terminal=True)
    watching.until("step 150/2000")
    beat(running, "ps-0", usage=vars(Usage(used.at_s + 2, 2.0, 6_000_000, 8000, 2_000_000)))
    watching.until("6.0 MB")
    rows = {words[0]: words for words in map(str.split, watching.text.splitlines()) if words and "-" in words[0]}
    assert rows["chief-0"][1:3] == ["training", "0"]
    assert rows["ps-0"][1:3] == ["serving", "1"]
    assert rows["ps-0"][3:11] == ["6.0", "MB", "50", "%", "4.0", "kB/s,", "1.0", "MB/s"]
    assert rows["worker-1"][3:6] == ["-", "-", "-"]  # it was not heard of for too long
    changed(running, status="completed", exit_code=0)
    time.sleep(0.1)
    assert watching.code is None  # tasks are still at something
    for file in (running / ".tasks").iterdir():
        file.unlink()
    (running / ".tasks").rmdir()
    watching.end()
    assert watching.code == ExitCode.DONE


def test_a_run_of_one_process_shows_its_last_epoch_and_how_old_that_is(running):
    watching = Watching(running, terminal=True)
    watching.until("step 100/2000")
    watching.until("last written 0 s ago")
    changed(running, status="failed", exit_code=1, error={"type": "DataError", "message": "a [file] is cut"})
    watching.end()
    assert (watching.code, "failed: a [file] is cut" in watching.text) == (ExitCode.FAILED, True)


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("failed", 2), ("interrupted", 175)])
def test_after_the_fact_it_ends_at_once_with_the_code_of_the_run(tmp_path, capfd, status, code):
    folder = a_run(tmp_path / "run", status=status, exit_code=code)
    assert main([str(folder)]) == code
    assert "failure: worker-1 was killed by SIGKILL" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "topology", "expected"),
    [
        ("run", "local", "psrun resume {}"),
        ("run", "slurm", "psrun submit slurm resume={}"),
        ("run", "kubernetes", "psrun submit kubernetes model=dense kubernetes.name=first | kubectl apply -f -"),
        ("it's a run", "local", "psrun resume {}"),
        ("it's a run", "slurm", "psrun submit slurm {}"),
    ],
)
def test_the_command_that_resumes_an_interrupted_run_can_be_pasted(tmp_path, capfd, name, topology, expected):
    overrides = ["cluster=kubernetes", "model=dense", "kubernetes.name=first"]
    cluster = {"topology": topology}
    folder = a_run(tmp_path / name, status="interrupted", exit_code=175, cluster=cluster, overrides=overrides)
    assert main([str(folder)]) == ExitCode.RESTART
    command = capfd.readouterr().out.partition("to resume: ")[2].strip()
    *words, last = shlex.split(command)
    if expected.endswith("slurm {}"):
        assert resume_folder([last]) == folder
    else:
        assert " ".join([*words, last]) == expected.format(folder)


def test_an_event_of_another_version_is_reported_by_its_name(tmp_path, capfd):
    folder = a_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text(line("epoch", 7, epoch=1) + line("warning", 8, message="[/odd]"))
    assert main([str(folder)]) == ExitCode.DONE
    assert capfd.readouterr().out.split("\n")[:2] == ["epoch  step 7", "warning: [/odd]"]


def test_a_process_or_tasks_that_are_gone_are_reported(running):
    """By heartbeats where processes cannot be seen."""
    changed(running, process={**process.place(), "pid": dead_pid()})
    aged(running, 20)
    with pytest.raises(PsrunError, match=r"exited without recording a status.* psrun resume "):
        main([str(running)])
    changed(running, process={"host": "elsewhere", "pid_namespace": 1, "pid": 1})
    beat(running, "chief-0", at_s=time.time() - 100)
    assert run_state.look(running).gone == ""  # run.json was just written
    aged(running, 100)
    with pytest.raises(PsrunError, match="none of its tasks sent a heartbeat for 1"):
        main([str(running)])


def test_another_process_with_the_number_of_the_run_is_not_taken_for_it(running):
    changed(running, process={**process.place(), "pid": os.getpid()})
    os.utime(running / "run.json", (psutil.Process().create_time() - 60,) * 2)
    result = json.loads((running / "run.json").read_text())
    assert run_state.is_alive(running, result) is False
    os.utime(running / "run.json")
    assert run_state.is_alive(running, result) is True


@pytest.mark.parametrize(("text", "message"), [('{"status": "run', "is damaged"), (None, "no run.json")])
def test_a_result_that_cannot_be_read_is_reported_after_the_events(running, capfd, text, message):
    (running / "run.json").unlink()
    if text:
        (running / "run.json").write_text(text)
    with pytest.raises(PsrunError, match=message):
        main([str(running)])
    assert "epoch 1/20" in capfd.readouterr().out


def test_half_a_result_that_becomes_whole_is_waited_for(running):
    whole = (running / "run.json").read_text()
    (running / "run.json").write_text(whole[:20])
    watching = Watching(running, wait_s=BOUND_S)
    watching.until("epoch 1/20")
    (running / "run.json").write_text(whole.replace('"running"', '"completed"'))
    watching.end()
    assert watching.error is None


def test_a_run_that_has_not_begun_can_be_waited_for(tmp_path, capfd):
    timer = threading.Timer(0.3, lambda: a_run(tmp_path / "run"))
    timer.start()
    assert main([str(tmp_path / "run"), "--wait", "10"]) == ExitCode.DONE
    timer.join()
    with pytest.raises(ConfigError, match="there is no folder"):
        main([str(tmp_path / "other"), "--wait", "0.1"])


@pytest.mark.parametrize("wait", ["-1", "nan", "soon"])
def test_times_to_wait_that_are_none_are_refused(tmp_path, wait, capfd):
    with pytest.raises(SystemExit):
        main([str(tmp_path), f"--wait={wait}"])
    assert wait in capfd.readouterr().err


# -- sweeps


def test_a_finished_sweep_is_a_table_with_the_best(tmp_path, capfd):
    a_sweep(tmp_path / "sweep")
    aged(tmp_path, 60)
    os.utime(tmp_path / "sweep" / "11", (0, 0))
    assert main([str(tmp_path / "sweep"), "--metric", "val_auc"]) == ExitCode.FAILED
    out = capfd.readouterr().out
    rows = {words[0]: words for words in map(str.split, out.splitlines()) if words}
    assert rows["10"][1:5] == ["num_workers=4", "partitioner=fixed_shards", "seed=1", "completed"]
    assert rows["10"][-3:] == ["0.9", "best", "12.0"]
    assert rows["2"][4:] == ["failed", "12.0", "the", "loss"]
    assert " ".join(rows["11"]).startswith("11 unknown no run.json")
    assert out.splitlines()[-1].startswith("12 jobs: 10 completed, 1 failed, 1 unknown; best: val_auc 0.9, job 10")


def test_the_best_loss_is_the_smallest_by_default(tmp_path, capfd):
    for number, loss in enumerate((0.3, 0.1, 0.2)):
        a_run(tmp_path / str(number), metrics={"val_loss": loss})
    aged(tmp_path, 60)
    assert main([str(tmp_path)]) == ExitCode.DONE
    assert "best: val_loss 0.1, job 1" in capfd.readouterr().out
    main([str(tmp_path), "--mode", "max"])
    assert "best: val_loss 0.3, job 0" in capfd.readouterr().out
    with pytest.raises(ConfigError, match="no job has 'val_acu'; choose one of val_loss"):
        main([str(tmp_path), "--metric", "val_acu"])


def test_a_running_sweep_shows_each_job_and_ends_with_the_last(tmp_path):
    """With the record of a sweep, which knows of jobs that have not begun."""
    listed = [{"number": n, "folder": str(n), "overrides": [f"seed={n}", "model=dense"]} for n in range(4)]
    record = {"status": "running", "metric": "val_auc", "mode": "max", "jobs": listed}
    (tmp_path / "sweep.json").write_text(json.dumps(record))
    a_run(tmp_path / "0", seed=0, metrics={"val_auc": 0.8})
    (tmp_path / "2" / ".hydra").mkdir(parents=True)
    (tmp_path / "2" / "config.yaml").write_text("")
    going = a_run(tmp_path / "1", seed=1, status="running", metrics={"val_auc": 0.7})
    changed(going, process=process.this_process())
    (going / "metrics.jsonl").write_text(epoch(3))
    watching = Watching(tmp_path, terminal=True)
    watching.until("best so far: val_auc 0.8, job 0")
    rows = [words for words in map(str.split, watching.text.splitlines()) if words and words[0] == "1"]
    assert rows[0][-5:] == ["running", "3/20", "300/2000", "50", "0.7"]
    for number in ("2", "3"):  # one has a folder, the other not even that
        assert [number, f"seed={number}", "waiting"] in [text.split() for text in watching.text.splitlines()]
    changed(going, status="completed", metrics={"val_auc": 0.9})
    watching.until("best so far: val_auc 0.9, job 1")
    for number in ("2", "3"):
        shutil.rmtree(tmp_path / number, ignore_errors=True)
        a_run(tmp_path / number, status="failed", metrics=None, error={"message": "no such thing"})
    (tmp_path / "sweep.json").write_text(json.dumps({**record, "status": "failed"}))
    watching.end()
    row = next(words for words in map(str.split, reversed(watching.text.splitlines())) if words[:1] == ["2"])
    assert (watching.code, " ".join(row)) == (ExitCode.FAILED, "2 seed=2 failed 12.0 no such thing")


def test_elsewhere_than_on_a_terminal_a_sweep_is_a_line_a_change(tmp_path):
    going = a_run(tmp_path / "0", status="running")
    changed(going, process=process.this_process())
    watching = Watching(tmp_path)
    watching.until("running")
    changed(going, status="completed")
    watching.end()
    assert (watching.code, watching.text.count("running")) == (ExitCode.DONE, 2)  # the line, and the first summary


def test_a_job_that_is_gone_and_a_killed_sweep_are_over(tmp_path, capfd):
    folder = a_run(tmp_path / "0", status="running")
    changed(folder, process={**process.place(), "pid": dead_pid()})
    aged(tmp_path, 60)
    assert main([str(tmp_path)]) == ExitCode.FAILED
    assert " gone  " in capfd.readouterr().out
    listed = [{"number": n, "folder": str(n), "overrides": []} for n in range(2)]
    record = {"status": "running", "host": process.place()["host"], "jobs": listed}
    (tmp_path / "sweep.json").write_text(json.dumps(record))
    changed(folder, status="completed")
    assert main([str(tmp_path)]) == ExitCode.FAILED
    assert "1 completed, 1 waiting" in capfd.readouterr().out


def test_a_sweep_that_is_called_off_and_folders_that_are_deleted_are_reported(running, tmp_path):
    watching = Watching(running)
    watching.until("epoch 1/20")
    running.rename(tmp_path / "run elsewhere")
    watching.end()
    assert "moved or deleted" in str(watching.error)
    for name, message in (("sweep.json", "no run is left"), ("", "moved or deleted")):
        folder = tmp_path / f"sweep{name}"
        folder.mkdir()
        (folder / "sweep.json").write_text(json.dumps({"status": "running", "jobs": []}))
        watching = Watching(folder)
        watching.until("0 jobs")
        (folder / name).rename(tmp_path / f"elsewhere{name}")
        watching.end()
        assert message in str(watching.error)


def test_each_job_that_is_over_is_read_once(tmp_path, monkeypatch):
    for number in range(3):
        a_run(tmp_path / str(number), status="completed" if number else "running")
    read = []
    look = run_state.look
    monkeypatch.setattr(run_state, "look", lambda path, **options: read.append(path.name) or look(path, **options))
    reader = SweepReader(tmp_path)
    assert [len(reader.look().jobs) for _ in range(3)] == [3, 3, 3]
    assert sorted(read) == ["0", "0", "0", "1", "2"]


# -- as a command


def watch(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "psrun", "watch", *map(str, arguments)]


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    files_ = [file for file in folder.rglob("*") if file.is_file()]
    return {str(f): (hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_mtime_ns) for f in files_}


def stable_words(text: str) -> list[str]:
    """The words that a run prints, without what depends on the clock: progress, notes, the lines of evaluations."""
    lines = [
        line for line in text.splitlines() if "note:" not in line and not re.match(r"epoch \d+/\d+ +step \d+/", line)
    ]
    # An evaluation that takes a second has a line of its own.
    return sorted(re.sub(r"evaluation \(.*? examples\)|val_", "", " ".join(lines)).split())


@pytest.mark.thorough
@pytest.mark.command
def test_a_run_in_another_process_is_followed_and_nothing_of_it_is_touched(tmp_path):
    cluster = Cluster(tmp_path, "cluster=inprocess", *QUICK)
    try:
        done = subprocess.run(
            watch(cluster.folder, "--wait", 60),
            cwd=cluster.root,
            capture_output=True,
            text=True,
            timeout=bounds.BOUND_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert cluster.end() == 0
    finally:
        cluster.close()
    assert stable_words(done.stdout) == stable_words(cluster.stdout)
    before = contents(cluster.folder)
    again = subprocess.run(
        watch(cluster.folder), cwd=cluster.root, capture_output=True, text=True, timeout=60, check=True
    )
    assert (stable_words(again.stdout), contents(cluster.folder)) == (stable_words(done.stdout), before)


ENDS = {"Ctrl-C": lambda child: child.send("\x03"), "SIGTERM": lambda child: child.kill(signal.SIGTERM)}


@pytest.mark.command
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_ends_the_view_at_a_terminal_ends_nothing_else_and_the_cursor_comes_back(running, end):
    import pexpect  # the test extra brings it

    beat(running, "ps-0", pid=os.getpid())
    before = contents(running)
    child = pexpect.spawn(watch()[0], watch(running)[1:], dimensions=(40, 140), timeout=60, encoding="utf-8")
    child.expect("ps-0 +serving")
    shown = child.before
    child.expect("epoch 1/20")
    assert "\x1b[?25l" in shown + child.before
    child.expect("ps-0 +serving")
    end(child)
    child.expect("the run continues")
    assert "\x1b[?25h" in child.before
    child.expect(pexpect.EOF)
    child.close()
    assert (child.exitstatus, contents(running)) == (ExitCode.INTERRUPTED, before)
