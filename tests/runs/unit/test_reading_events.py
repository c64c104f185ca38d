"""Events read from metrics.jsonl add up to the same state, however the file was cut when it was read."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from psrun.config.topology import Task
from psrun.results import task_files
from psrun.results.events import Event, EventReader, Progress, fold, fold_all
from psrun.results.run_folder import RunFolder
from psrun.results.task_files import Heartbeat
from psrun.runs.sweeps.sweep import Job
from psrun.runs.sweeps.sweep_state import SweepState
from psrun.runs.watch.sweep import SweepScreen

# Nothing here depends on the speed of the machine.
properties = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
LETTERS = 'ab é日[]/"\\\n\x1b'

numbers = st.floats(allow_nan=True, allow_infinity=True)
metrics = st.dictionaries(st.sampled_from(["loss", "auc"]), numbers)
losses = st.fixed_dictionaries({"task": st.sampled_from(["ps-0", "worker-1"]), "at_s": st.integers(0, 5)})
checkpoints = st.lists(st.fixed_dictionaries({"step": st.integers(1, 9), "good": st.just(True)}), max_size=3)
data_by_kind = {
    "begun": st.fixed_dictionaries({"overrides": st.lists(st.text(LETTERS, max_size=3), max_size=2)}),
    "epoch": st.fixed_dictionaries({"epoch": st.integers(1, 9), "metrics": metrics}),
    "evaluation": st.fixed_dictionaries({"mode": st.just("exact"), "metrics": metrics}),
    "recovery": losses,
    "lost": losses,
    "checkpoints": st.fixed_dictionaries({"good": checkpoints, "damaged": st.just([]), "removed": st.just([2])}),
    "ended": st.fixed_dictionaries({"status": st.sampled_from(["completed", "failed"])}),
    "warning": st.fixed_dictionaries({"message": st.text(LETTERS, max_size=5)}),
}
events = st.sampled_from(sorted(data_by_kind)).flatmap(
    lambda kind: st.builds(Event, st.just(kind), st.none() | st.integers(0, 20), st.just(1.0), data_by_kind[kind])
)


@properties
@given(happened=st.lists(events, max_size=8), cuts=st.lists(st.floats(0, 1), max_size=6))
def test_events_that_are_read_in_pieces_add_up_to_the_same(tmp_path_factory, happened, cuts):
    written = RunFolder(tmp_path_factory.mktemp("written"))
    for event in happened:
        written.event(event)
    content = written.metrics.read_bytes() if happened else b""
    whole = EventReader(written.metrics).read()
    growing = tmp_path_factory.mktemp("growing") / "metrics.jsonl"
    reader = EventReader(growing)
    pieces = []
    for end in [*sorted(round(cut * len(content)) for cut in cuts), len(content)]:
        growing.write_bytes(content[:end])
        pieces += reader.read()
    assert pieces == whole
    assert fold_all(pieces) == written.stored()
    assert [event.kind for event in whole] == [event.kind for event in happened]
    assert (reader.broken, reader.unfinished, reader.begun_again) == (0, False, 0)


@properties
@given(first=st.lists(events, max_size=6), again=st.lists(events, max_size=6))
def test_a_state_is_the_same_whether_it_was_folded_before_or_after_an_interruption(first, again):
    """A process that takes over a run folds its events into what it finds."""
    state = fold_all(first)
    for event in again:
        state = fold(state, event)
    assert json.dumps(state) == json.dumps(fold_all([*first, *again]))


def test_a_file_that_is_another_one_is_read_from_its_beginning(tmp_path):
    def line(kind: str) -> str:
        return json.dumps({"event": kind, "step": 1, "wall_s": 1.0}) + "\n"

    file = tmp_path / "metrics.jsonl"
    reader = EventReader(file)
    assert reader.read() == []
    file.write_text(line("a") + line("b")[:-5])
    assert [event.kind for event in reader.read()] == ["a"]
    assert reader.unfinished
    file.write_text(line("a") + line("b") + "no event\n" + '{"event": 1}\n')
    assert [event.kind for event in reader.read()] == ["b"]
    assert (reader.broken, reader.begun_again) == (2, 0)
    file.write_text(line("c"))  # shorter
    assert [event.kind for event in reader.read()] == ["c"]
    assert reader.begun_again == 1
    other = tmp_path / "other"
    other.write_text(line("d") + line("e"))  # not shorter, but another file
    other.replace(file)
    assert [event.kind for event in reader.read()] == ["d", "e"]
    assert reader.begun_again == 2
    file.unlink()
    assert reader.read() == []
    file.write_text(line("f"))
    assert [event.kind for event in reader.read()] == ["f"]


names = st.text(LETTERS, max_size=3)
progress = st.builds(
    Progress, st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.integers(1, 99),
    st.none() | st.floats(0, 1e6), st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 9),
    st.dictionaries(names, st.floats(-9, 9), max_size=2),
)  # fmt: skip
finite = st.floats(0, 1e12)
beats = st.builds(
    Heartbeat, st.integers(0, 2**22), finite, names, st.none() | st.integers(0, 99), st.none() | finite,
    st.none() | finite, st.integers(0, 99), st.none() | progress.map(asdict),
)  # fmt: skip


@properties
@given(beat=beats)
def test_a_heartbeat_is_read_as_it_was_written(tmp_path_factory, beat):
    folder = tmp_path_factory.mktemp("heartbeat")
    writer = task_files.HeartbeatWriter(folder, Task("worker", 0), lambda: beat)
    file = task_files.path(folder, Task("worker", 0))
    file.parent.mkdir()
    writer._write()
    read = task_files.read(folder, Task("worker", 0))
    assert read is not None
    assert {**asdict(read), "at_s": beat.at_s, "usage": None} == asdict(beat)
    assert read.used.memory_bytes > 0  # of this process
    assert read.at_s == max(beat.at_s, file.stat().st_mtime)
    assert read.training == (None if beat.progress is None else Progress(**beat.progress))


texts = st.text(LETTERS, max_size=12) | st.sampled_from(["[/b]", "[red]", "\x1b[31m", "a\nb"])
some_jobs = st.builds(
    Job, number=st.none() | st.integers(0, 99), overrides=st.lists(texts, max_size=2), folder=texts,
    status=st.sampled_from(["waiting", "starting", "running", "completed", "failed", "interrupted", "gone", "unknown"]),
    metric=st.none() | numbers, wall_s=st.none() | st.floats(0, 1e6), error=st.none() | texts, doing=texts,
    differing=st.lists(texts, max_size=2), progress=st.none() | progress, metrics=metrics,
)  # fmt: skip
states = st.builds(
    SweepState, st.lists(some_jobs, max_size=4), st.sampled_from([None, "running", "gone", "completed"]),
    st.sampled_from([None, "loss", "auc"]), st.sampled_from(["min", "max"]),
)  # fmt: skip


@properties
@given(state=states, is_terminal=st.booleans(), width=st.integers(1, 120))
def test_a_sweep_is_shown_whatever_is_in_it(state, is_terminal, width):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=width, height=9)
    screen = SweepScreen(console)
    screen.start()
    screen.show(state, state.jobs)
    screen.stop()
    screen.result(state)
