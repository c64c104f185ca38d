"""The run folder, the console and its tables."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import threading

import pytest
from rich.console import Console

from psrun import files, process
from psrun.cluster.placement import Placed
from psrun.errors import ConfigError, ExitCode, RunFolderError
from psrun.results import console, run_folder, run_state
from psrun.results.console import ConsoleSink, ProgressLine
from psrun.results.events import Event, Progress
from psrun.results.run_folder import RunFolder
from psrun.roles import run_process


def test_run_json_is_whole_at_every_moment_and_knows_no_nan(tmp_path):
    folder = RunFolder.create(tmp_path / "run", raw={"seed": 1})
    folder.reserve_disk_space()
    folder.emit("ended", status="failed", metrics={"loss": float("nan")})
    folder.emit("code", commit="a")
    folder.emit("code", commit="b")
    result = json.loads((folder.path / "run.json").read_text())
    assert result == {"status": "failed", "metrics": {"loss": None}, "code": {"commit": "b"}}
    assert [path.name for path in folder.path.iterdir() if path.name.startswith((".run.json", ".reserve"))] == []


def test_a_folder_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created or written to: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", raw={})


def test_a_full_disk_is_reported_with_the_folder_and_passes_for_an_os_error(tmp_path):
    folder = RunFolder.create(tmp_path, raw={})
    folder.metrics.symlink_to("/dev/full")
    with pytest.raises(
        RunFolderError, match=rf"run folder {tmp_path} cannot be written to: No space.*; free disk space"
    ) as raised:
        folder.event(Event("start", step=0, wall_s=0.5, data={}))
    assert isinstance(raised.value, OSError)
    assert (raised.value.errno, raised.value.exit_code) == (errno.ENOSPC, 1)


@pytest.mark.parametrize(("code", "recorded"), [(errno.ENOSPC, "failed"), (errno.EDQUOT, "failed"), (errno.EACCES, "")])
def test_the_end_of_a_run_is_recorded_on_a_disk_that_is_full(tmp_path, monkeypatch, code, recorded):
    folder = RunFolder.create(tmp_path, raw={})
    folder.reserve_disk_space()
    write = files.write_atomic

    def full(path, text, **options):
        if (tmp_path / ".reserve").exists():
            raise OSError(code, os.strerror(code))
        write(path, text, **options)

    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(RunFolderError):
        folder.emit("code", commit="a")
    assert (tmp_path / ".reserve").stat().st_size == 64 * 1024
    with contextlib.nullcontext() if recorded else pytest.raises(RunFolderError):
        folder.emit("ended", status="failed")
    assert folder.stored().get("status", "") == recorded


def test_a_run_whose_process_is_gone_is_not_reported_as_running(tmp_path):
    folder = RunFolder.create(tmp_path, raw={})
    folder.emit("begun", overrides=[], process={**process.place(), "pid": 2**22 + 1})  # more than Linux has
    for file in (tmp_path / "run.json", folder.metrics):
        os.utime(file, (0, 0))
    state = run_state.look(tmp_path)
    assert (state.status, state.outcome) == ("running", "gone")
    assert state.gone.endswith("exited without recording a status")


@pytest.mark.parametrize(("resumes", "key"), [(True, "resume"), (False, "hydra.run.dir")])
def test_a_run_that_is_running_is_not_started_again(tmp_path, resumes, key):
    held = files.lock(tmp_path)
    try:
        with pytest.raises(ConfigError) as refused:
            RunFolder.lock(tmp_path, resumes=resumes)
    finally:
        os.close(held)
    (problem,) = refused.value.problems
    assert problem.key == key
    assert (f"psrun watch {tmp_path}" in problem.message and f"psrun stop {tmp_path}" in problem.message) == resumes


def test_a_limit_of_the_size_of_files_is_named(tmp_path):
    error = RunFolderError(tmp_path, OSError(errno.EFBIG, os.strerror(errno.EFBIG)))
    assert str(error).endswith("File too large; raise the limit of the size of files (ulimit -f)")
    assert run_process._CANNOT_BE_WRITTEN.count(errno.EFBIG) == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_the_console_shows_progress_and_epochs(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    sink = ConsoleSink(console)
    sink._last_plain_s = -1e9
    sink.progress(Progress(2, 5, 150, 500, 81.5, 5216.0, 0.25, {"auc": 0.75}))
    data = {"epoch": 2, "epochs": 5, "steps_per_s": 80.0, "examples_per_s": 5120.0, "metrics": {"loss": 0.2}}
    sink.event(Event("epoch", 200, 3.0, data))
    sink.close()
    text = console.file.getvalue()
    parts = ["epoch 2/5", "step 150/500", "81.5 steps/s", "5,216 examples/s", "loss 0.25", "last epoch: auc 0.75"]
    for part in [*parts, "step 200", "loss 0.2"]:
        assert part in text
    assert ("\x1b[" in text) is terminal


MANY = {"loss": 0.5432, "auc": 0.8765, "accuracy": 0.7654}


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_progress_is_one_row_with_what_fits(width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    progress = Progress(12, 20, 98_765, 123_456, 1_234.5, 123_456.7, 0.6931, {f"val_{name}": 0.5 for name in MANY})
    console.print(ProgressLine(progress))
    (line,) = console.file.getvalue().splitlines()
    assert "epoch 12/20  step 98765/123456" in line
    assert ("loss 0.6931" in line, "steps/s" in line) == (width >= 60, width >= 80)
    console.print(ProgressLine(Progress(1, 20, 1, 500, 0.0, 0.0, None)))
    assert "loss" not in console.file.getvalue().splitlines()[1]


def printed(*events: Event | Progress, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal, color_system=None)
    sink = ConsoleSink(console)
    for each in events:
        sink.progress(each) if isinstance(each, Progress) else sink.event(each)
    sink.close()
    return console.file.getvalue()


def epoch_lines(*events: Event | Progress, terminal: bool = False) -> list[str]:
    lines = printed(*events, terminal=terminal).splitlines()
    return [line for line in lines if line.strip().startswith(("epoch", "eval"))]


def test_an_epoch_and_its_evaluation_are_one_line():
    rates = {"steps_per_s": 125.9, "examples_per_s": 4028.0}
    first, second = (Event("epoch", 12 * n, 1.0, {"epoch": n, "epochs": 20, **rates, "metrics": MANY}) for n in (1, 2))
    evaluation = {"mode": "direct", "examples_seen": 42, "metrics": MANY}
    of_first = Event("evaluation", 12, 1.1, evaluation)
    whole = "loss 0.5432  auc 0.8765  accuracy 0.7654"
    both = f"epoch 1/20  step 12  {whole}  val_loss 0.5432  val_auc 0.8765  val_accuracy 0.7654"
    alone = f"epoch 2/20  step 24  {whole}  125.9 steps/s  4,028 examples/s"
    assert epoch_lines(first, of_first, second) == [f"{both}  125.9 steps/s  4,028 examples/s", alone]
    assert epoch_lines(first, of_first, terminal=True) == [both]  # as wide as the terminal
    assert epoch_lines(second, Progress(3, 20, 30, 240, 1.0, 1.0, 0.5)) == [alone]
    sidecar = Event("evaluation", 12, 1.1, {**evaluation, "mode": "sidecar"})
    assert epoch_lines(second, sidecar)[1].startswith("  evaluation of step 12 (sidecar, 42 examples)  loss 0.5432")
    assert len(epoch_lines(first, sidecar)) == 2


def test_an_epoch_is_printed_while_its_evaluation_takes_long():
    now = [0.0]
    console = Console(file=io.StringIO(), width=120, color_system=None, get_time=lambda: now[0])
    sink = ConsoleSink(console)
    rates = {"steps_per_s": 125.9, "examples_per_s": 4028.0}
    sink.event(Event("epoch", 12, 1.0, {"epoch": 1, "epochs": 20, **rates, "metrics": MANY}))
    sink.view("tasks")
    assert console.file.getvalue() == ""
    now[0] = 2.0
    sink.view("tasks")
    assert console.file.getvalue().startswith("epoch 1/20  step 12  loss 0.5432")
    sink.event(Event("evaluation", 12, 9.0, {"mode": "direct", "examples_seen": 42, "metrics": MANY}))
    assert console.file.getvalue().splitlines()[1].startswith("  evaluation (direct, 42 examples)  loss 0.5432")


def test_many_lookups_are_reported_in_two_lines():
    lookups = [{"layer": f"C{n}", "deduplicate": n < 25, "distinct": n / 100} for n in range(3, 29)]
    assert printed(Event("lookups", None, 0.0, {"lookups": lookups})).splitlines() == [
        "C3, C4, C5 and 19 more: 3% to 24% of a batch's ids are distinct; duplicates are sent once",
        "C25, C26, C27 and 1 more: 25% to 28% of a batch's ids are distinct; duplicates are sent each time",
    ]
    alone = printed(Event("lookups", None, 0.0, {"lookups": lookups[:1]}))
    assert alone == "C3: 3% of a batch's ids are distinct; duplicates are sent once\n"


@pytest.mark.parametrize(
    ("metrics", "hinted"),
    [
        ({"loss": 0.7, "auc": 0.5012, "val_auc": 0.4961}, True),
        ({"loss": 0.1, "auc": 0.97, "val_auc": 0.5}, False),  # learned, and nothing that holds elsewhere
        ({"loss": 0.1, "auc": 0.8}, False),
        ({"loss": 0.5, "auc": None}, False),
        ({"loss": 0.5}, False),
    ],
)
def test_an_auc_of_chance_at_the_end_comes_with_a_hint(metrics, hinted):
    own = {"steps": 10, "seconds": 1.0}
    data = {"metrics": metrics, "step_time": None, "time_to_first_step_s": None, "this_process": own}
    text = printed(Event("end", 10, 1.0, data))
    assert ("hint: an AUC of 0.5 means random predictions" in text) == hinted


def test_brackets_in_what_users_wrote_are_text_and_no_markup():
    row = {"feature": "a", "dtype": "string", "values": 2, "examples": "[/b], [red]"}
    text = printed(
        Event("warning", None, 0.0, {"message": "'[/b]' is not in data.label_vocabulary=[no, yes]"}),
        Event("features", None, 0.0, {"features": [{**row, **dict.fromkeys(("ids", "missing", "note"), "")}]}),
        Event("failure", None, 0.0, {"task": "worker:0", "cause": "ended: [/x] [bold]", "action": "stops"}),
    )
    assert "warning: '[/b]' is not in data.label_vocabulary=[no, yes]" in text
    assert "[/b], [red]" in text
    assert "worker:0 ended: [/x] [bold]; stops" in text


def test_equal_rows_of_the_tasks_of_a_job_are_one_row():
    workers = [(f"worker-{index}", "0 bytes", "1 kB") for index in range(12)]
    others = [("chief-0", "1 kB", ""), *((f"ps-{index}", "2 kB", "1 kB") for index in range(4))]
    assert console.folded_rows([*others, *workers]) == [*others, ("worker-0 to worker-11", "0 bytes", "1 kB")]
    workers[6] = ("worker-6", "7 bytes", "1 kB")
    assert [row[0] for row in console.folded_rows(workers)] == [
        "worker-0 to worker-5",
        "worker-6",
        "worker-7 to worker-11",
    ]
    assert console.folded_rows([("a b", "1")] * 7) == [("a b", "1")] * 7  # no tasks with numbers
    assert console.folded_rows([]) == []


def test_the_shards_of_a_variable_on_many_parameter_servers_are_one_range():
    placed = [Placed("table", shard, f"ps-{shard}", 1000, "model", (200, 2), "float32") for shard in range(100)]
    wide = Console(file=io.StringIO(), width=100)
    wide.print(console.placement_table(placed, "Placement"))
    text = wide.file.getvalue()
    assert "ps-0 to ps-99" in text
    assert "total: ps-0 to ps-99 1.0 kB; the maximum is 1.00 times the mean" in text


@pytest.mark.parametrize("trained", [True, False])
def test_an_error_of_the_configuration_after_training_removes_nothing(tmp_path, monkeypatch, trained):
    """A task that starts again may find that the limit of open files is too low now, or that a file is gone."""

    def ends(raw, path, overrides, started_s, is_own):
        folder = RunFolder.create(path, raw={})
        if trained:
            folder.emit("epoch", metrics={"loss": 1.0})
        return ExitCode.USAGE

    monkeypatch.setattr(run_process, "_execute", ends)
    code = run_process.execute({}, tmp_path / "run", [], started_s=0.0, keep_unrun=False)
    assert (code, (tmp_path / "run").exists()) == (ExitCode.USAGE, trained)


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, True),
        ({"trainer": {"epochs": 20, "steps_per_epoch": 9}}, True),
        ({"trainer": {"epochs": 21, "steps_per_epoch": 5}}, False),
        ({"early_stopping": {"metric": "val_auc", "patience": 5}}, False),
    ],
)
def test_a_run_that_ended_early_trains_on_only_with_another_rule_or_length(tmp_path, changes, ends):
    raw = {"trainer": {"epochs": 20, "steps_per_epoch": 5}, "early_stopping": {"metric": "val_auc", "patience": 2}}
    folder = RunFolder.create(tmp_path / "run", raw=raw)
    folder.end_early("val_auc has not improved in 2 evaluations")
    folder.emit("ended", status="completed")
    again = RunFolder.resume(folder.path, completed=True, raw={**raw, **changes})
    assert again.ends_early() == ends


def test_a_signal_handler_records_the_end_while_the_interrupted_thread_writes(tmp_path, monkeypatch):
    """The interrupted thread holds the lock, and goes on only after the handler."""
    monkeypatch.setattr(run_folder, "_LOCK_TIMEOUT_S", 0.01)
    folder = RunFolder.create(tmp_path, raw={})
    with folder._lock:
        handler = threading.Thread(target=lambda: folder.emit_at_once("ended", status="interrupted"), daemon=True)
        handler.start()
        handler.join(10)
        assert not handler.is_alive()
    assert folder.stored()["status"] == "interrupted"
