"""What the terminal says of one run: its lines and tables, on a terminal and in a file."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console
from rich.text import Text

from psrun.cluster import placement
from psrun.cluster.placement import Placed
from psrun.results import console
from psrun.results.console import ConsoleSink, ProgressLine
from psrun.results.events import Event, Progress


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
    for part in ("epoch 2/5", "step 150/500", "81.5 steps/s", "5,216 examples/s", "loss 0.25", "step 200", "loss 0.2"):
        assert part in text
    assert ("\x1b[" in text) is terminal
    assert ("last epoch: auc 0.75" in text) is terminal  # in a file, the line of that epoch is above


@pytest.mark.parametrize("terminal", [True, False])
def test_a_resumed_run_waits_for_its_first_step_as_a_new_one_does(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    sink = ConsoleSink(console)
    for progress in (Progress(3, 5, 0, 500, 0.0, 0.0, None), Progress(3, 5, 200, 500, 0.0, 0.0, None, has_begun=False)):
        sink._last_plain_s = -1e9
        sink.progress(progress)
    sink.close()
    text = console.file.getvalue()
    assert "steps/s" not in text
    assert ("starting the first step" in text) is terminal


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
    console.print(ProgressLine(Progress(1, 20, 1, 500, None, None, 0.5)))  # of virtual workers
    assert "steps/s" not in console.file.getvalue().splitlines()[2]


def printed(*events: Event | Progress, terminal: bool = False, width: int = 120, verbose: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, height=24, force_terminal=terminal, color_system=None)
    sink = ConsoleSink(console, verbose=verbose)
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
    event = Event("lookups", None, 0.0, {"lookups": lookups})
    assert printed(event) == ""
    assert printed(event, verbose=True).splitlines() == [
        "C3, C4, C5 and 19 more: 3% to 24% of a batch's ids are distinct; duplicates are sent once",
        "C25, C26, C27 and 1 more: 25% to 28% of a batch's ids are distinct; duplicates are sent each time",
    ]
    alone = printed(Event("lookups", None, 0.0, {"lookups": lookups[:1]}), verbose=True)
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


def placed_event(placed: list[Placed], num_ps: int = 0) -> Event:
    rows = [dataclasses.asdict(each) for each in placed]
    return Event("placement", None, 0.0, {"placement": rows, "num_ps": num_ps, "max_over_mean": 1.0})


def test_the_shards_of_a_variable_on_many_parameter_servers_are_one_range():
    placed = [Placed("table", shard, f"ps-{shard}", 1000, "model", (200, 2), "float32") for shard in range(100)]
    text = printed(placed_event(placed), verbose=True)
    assert "ps-0 to ps-99" in text
    assert "total: ps-0 to ps-99 1.0 kB; the maximum is 1.00 times the mean" in text


def test_variables_of_metrics_are_one_row():
    table = Placed("embeddings", 0, "ps-0", 1000, "model", (50, 5), "float32")
    of_metrics = [Placed("total", 0, f"ps-{index}", 4, "metric", (), "float32") for index in (1, 0, 1)]
    console_ = Console(file=io.StringIO(), width=100, color_system=None)
    console_.print(console.placement_table([table, *of_metrics], "Placement"))
    rows = [line.split("  ") for line in console_.file.getvalue().splitlines() if "metrics" in line]
    (cells,) = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == ["(variables of metrics)", "ps-0 ps-1", "12 bytes"]


def held(*sizes: int) -> list[Placed]:
    """A variable for each parameter server, with so many bytes."""
    return [
        Placed(f"table_{index}", 0, f"ps-{index}", size, "model", (size // 4, 1), "float32")
        for index, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "num_ps", "line", "is_uneven"),
    [
        ((640, 84), 2, "724 bytes on 2 parameter servers, 640 bytes of it on ps-0", False),
        ((400, 400), 2, "800 bytes on 2 parameter servers, balanced", False),
        ((800,), 1, "800 bytes on 1 parameter server", False),
        ((800,), 4, "800 bytes on 4 parameter servers, 800 bytes of it on ps-0", False),  # too small to matter
        ((8_000_000, 4), 4, "8.0 MB on 4 parameter servers, 8.0 MB of it on ps-0", True),
        ((8_000_000, 8_000_000), 0, "16.0 MB on 2 parameter servers, balanced", False),  # addresses say how many
        ((), 2, "", False),
    ],
)
def test_a_run_says_its_placement_in_one_line(sizes, num_ps, line, is_uneven):
    assert printed(placed_event(held(*sizes), num_ps)).splitlines() == [line] * bool(line)
    warnings = placement.uneven(held(*sizes), num_ps)
    assert len(warnings) == is_uneven
    for text in warnings:
        assert text.startswith("ps-0 holds 8.0 MB of the 8.0 MB on 4 parameter servers, 4.0 times the mean")
        assert "table_0" in text


def test_variables_of_the_chief_have_no_line():
    alone = [Placed("table", 0, "chief-0", 800, "model", (200, 1), "float32")]
    assert printed(placed_event(alone)) == ""
    assert "total: chief-0 800 bytes" in printed(placed_event(alone), verbose=True)


FEATURE = {"dtype": "float32", "ids": "4 bins", "values": 9, "missing": "", "examples": "1 to 9", "note": ""}


def guess(count: int, *left_out: str) -> Event:
    rows = [{**FEATURE, "feature": f"column_{number}"} for number in range(count)]
    rows += [{**FEATURE, "feature": name, "dtype": "omitted", "note": "the same in each row"} for name in left_out]
    return Event("features", None, 0.0, {"features": rows, "notes": ["label y: binary, no is 0 and yes is 1"]})


@pytest.mark.parametrize("terminal", [True, False])
def test_the_features_of_a_guess_take_a_screen_at_most(terminal):
    lines = printed(guess(100, "region"), terminal=terminal, width=80).splitlines()
    assert len(lines) < 24
    assert any(line.startswith("column_0 ") for line in lines)
    assert lines[-3:] == [
        f"and {100 - (len(lines) - 5)} more features; psrun -v and psrun plan show all",
        "left out: region (the same in each row)",
        "label y: binary, no is 0 and yes is 1",
    ]
    whole = printed(guess(100, "region"), terminal=terminal, width=80, verbose=True)
    assert "column_99" in whole
    assert "region" in whole
    assert "more features" not in whole
    few = printed(guess(3), terminal=terminal, width=80)
    assert "column_2" in few
    assert "more" not in few
    many = printed(guess(1, *(f"column_{number}" for number in range(1, 31))))
    assert "column_10 (the same in each row) and 20 more (psrun -v and psrun plan show all)" in many


RATES = {"steps_per_s": 125.9, "examples_per_s": 4028.0}


@pytest.mark.parametrize("width", [40, 80, 100])
def test_the_lines_of_an_epoch_break_between_metrics(width):
    epoch = Event("epoch", 1200, 1.0, {"epoch": 12, "epochs": 20, **RATES, "metrics": MANY})
    evaluation = Event("evaluation", 1200, 1.1, {"mode": "direct", "examples_seen": 42, "metrics": MANY})
    lines = printed(epoch, evaluation, terminal=True, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("epoch 12/20  step 1200")
    parts = [part for line in lines for part in line.strip().split("  ")]
    known = [f"{name} {value:.4g}" for name, value in MANY.items()]
    assert parts[2:5] == known
    assert parts[-3:] == [f"val_{each}" for each in known]
    assert all(line.startswith("  ") for line in lines[1:])
    if width == 80:
        assert lines == [
            "epoch 12/20  step 1200  loss 0.5432  auc 0.8765  accuracy 0.7654  125.9 steps/s",
            "  val_loss 0.5432  val_auc 0.8765  val_accuracy 0.7654",
        ]


@pytest.mark.parametrize("width", [20, 40, 80, None])
def test_a_text_is_folded_between_words(width):
    path = "/home/ada/runs/2026-01-31_10-00-00-embedding-1f2e/checkpoints/ckpt-20"
    text = f"  the checkpoint  of step 20 is in {path}, and the next one\nis not kept"
    lines = console.folded(Text(text), width).plain.split("\n")
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert all(len(line) <= (width or len(text)) or path in line for line in lines)
    assert lines[0].startswith("  the checkpoint")
    assert any(path in line for line in lines)
    if width is None:
        assert lines == text.split("\n")


def test_a_command_is_folded_as_one_word():
    command = "psrun data inspect penguins.csv --label Sex --write conf/data/NAME.yaml"
    text = Text(f"to edit the features of this table: {command}; or see psrun -v, which shows all of the features")
    assert console.folded(text, 80).plain.split("\n") == [
        "to edit the features of this table:",
        f"  {command}; or",
        "  see psrun -v, which shows all of the features",
    ]


BEST = {
    "metric": "val_auc", "value": 0.9673, "step": 48, "epoch": 4, "epochs": 9, "is_final": True,
    "metrics": {"val_loss": 0.3, "val_auc": 0.9673}, "checkpoint": None, "keeps": None,
}  # fmt: skip


def ended(folder: str = "/somewhere/run", *, own_steps: int = 108, step: int = 108, **data: object) -> list[str]:
    """The lines of a terminal of 80 columns at the end of a training."""
    own = {"steps": own_steps, "seconds": 1.0}
    metrics = {"loss": 0.1, "val_auc": 0.9}
    end = {"metrics": metrics, "step_time": None, "time_to_first_step_s": 2.0, "this_process": own, **data}
    start = {"title": "dense on none, fit", "run_folder": folder, "notes": []}
    events = Event("start", None, 0.0, start), Event("end", step, 9.5, end)
    return printed(*events, terminal=True, width=80).splitlines()[1:]


def test_the_last_lines_have_the_best_evaluation_its_checkpoint_and_the_next_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "runs" / "my run")
    best = {**BEST, "checkpoint": f"{folder}/checkpoints/ckpt-48"}
    follows = {"command": "predict", "arguments": ["restore=best", "data.eval_path=FILE"]}
    assert ended(folder, best=best, next=follows) == [
        "completed 108 steps in 9.5 s (first step after 2.0 s)",
        "best: val_auc 0.9673 in epoch 4 of 9  val_loss 0.3",
        "  checkpoint runs/my run/checkpoints/ckpt-48",
        "results: runs/my run",
        "next: psrun predict 'runs/my run' restore=best data.eval_path=FILE",
    ]


def test_the_time_to_the_first_step_is_shown_by_part_only_where_all_is_shown():
    own = {"steps": 8, "seconds": 1.0}
    parts = {"import": 4.46, "data": 1.5, "trace": 2.0}
    end = {"metrics": {}, "time_to_first_step_s": 7.96, "time_to_first_step_by_part_s": parts, "this_process": own}
    event = Event("end", 8, 9.5, end)
    whole = "completed 8 steps in 9.5 s (first step after 8.0 s)"
    assert printed(event).splitlines() == [whole]
    assert printed(event, verbose=True).splitlines() == [
        whole,
        "  seconds to the first step: import 4.5, data 1.5, trace 2.0",
    ]


def test_the_best_evaluation_may_have_no_checkpoint_may_be_the_last_and_may_not_be_final():
    keeps = "checkpoint.best_metric=val_auc checkpoint.best_mode=max"
    assert ended(best={**BEST, "keeps": keeps})[1:4] == [
        "best: val_auc 0.9673 in epoch 4 of 9  val_loss 0.3",
        "  its checkpoint is not kept; to keep it, train with",
        "  checkpoint.best_metric=val_auc checkpoint.best_mode=max",
    ]
    last = {**BEST, "step": 108, "epoch": 9, "is_final": False}
    assert ended(best=last)[1] == "best so far: val_auc 0.9673 in epoch 9 of 9, the last"
    assert ended(best={**BEST, "epoch": None})[1].startswith("best: val_auc 0.9673 in step 48")
    assert ended()[1:] == ["results: /somewhere/run"]  # of an earlier version


def test_the_last_metrics_are_repeated_only_where_this_process_has_shown_none():
    assert not any("loss 0.1" in line for line in ended())
    lines = ended(own_steps=0)
    last = lines.index("  last epoch  loss 0.1  val_auc 0.9")
    assert lines[last + 1].startswith("hint: the run was complete")


def test_a_file_gets_whole_lines_and_tables():
    paper = console.wide_unless_terminal(Console(file=io.StringIO(), width=80))
    sink = ConsoleSink(paper, verbose=True)
    name = "a_layer_with_a_name/" * 8
    sink.event(placed_event([Placed(name, 0, "ps-0", 800, "model", (200, 1), "float32")]))
    sink.event(Event("warning", None, 0.0, {"message": "word " * 50}))
    lines = paper.file.getvalue().splitlines()
    assert any(line.startswith(name) for line in lines)
    assert lines[-1].startswith("warning: word word")
    assert console.wide_unless_terminal(Console(width=80, force_terminal=True)).width == 80
