"""Console output of a run: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from psrun.cluster.placement import Placed
from psrun.results.events import Event, Progress
from psrun.results.tables import features_guessed, placement_table

_PLAIN_EVERY_S = 10.0
_AT_CHANCE = (
    "an AUC of 0.5 means random predictions: the model has not learned. Try another optimizer.learning_rate, "
    "optimizer=lazy_adam or more epochs, and check the features and the label"
)
_STAGES = {
    "input": "waiting for input",
    "traffic": "parameter traffic",
    "compute": "computing",
    "other": "between executions",
}


def numbers(metrics: Mapping[str, float | None]) -> str:
    """'loss 0.1234  auc 0.9'; None, as NaN is recorded in JSON, is shown as nan."""
    return "  ".join(f"{name} {'nan' if value is None else f'{value:.4g}'}" for name, value in metrics.items())


def warner(console: Console) -> Callable[[str], None]:
    """A function that prints a warning."""
    mark = ("warning:", "yellow")
    return lambda text: console.print(Text.assemble(mark, f" {text}"), highlight=False, soft_wrap=True)


class ConsoleSink:
    """Prints a run's events on `console`; on a terminal, with a progress line at the bottom."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._last_plain_s = console.get_time()

    def event(self, event: Event) -> None:
        show = getattr(self, f"_show_{event.kind}", None)
        if show:
            with self._lock:
                show(event)

    def progress(self, progress: Progress) -> None:
        with self._lock:
            if not self._console.is_terminal:
                self._plain_progress(progress)
                return
            self._show_live(progress_line(progress))

    def view(self, what: RenderableType, progress: Progress | None = None) -> None:
        """On a terminal: `what`, such as the tasks of a cluster, above the progress of the training."""
        with self._lock:
            if self._console.is_terminal:
                self._show_live(Group(what, *([progress_line(progress)] if progress else [])))
            elif progress:
                self._plain_progress(progress)

    def close(self) -> None:
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _show_live(self, what: RenderableType) -> None:
        if self._live is None:
            # Other output goes above the live view, unless it is redirected.
            here = self._console.file is sys.stdout
            self._live = Live(console=self._console, refresh_per_second=4, transient=True, redirect_stdout=here)
            self._live.start()
        self._live.update(what)

    def _plain_progress(self, progress: Progress) -> None:
        now = self._console.get_time()
        if now - self._last_plain_s >= _PLAIN_EVERY_S and progress.step:
            self._last_plain_s = now
            self._print(_progress_text(progress))

    def _print(self, *parts: str | tuple[str, str]) -> None:
        # Assembled, so that brackets in user text are not parsed as markup.
        self._console.print(Text.assemble(*parts), highlight=False, soft_wrap=True)

    def _show_start(self, event: Event) -> None:
        self._print((event.data["title"], "bold"), f"  run folder {event.data['run_folder']}")
        for note in event.data["notes"]:
            self._print(("note:", "yellow"), f" {note}")

    def _show_placement(self, event: Event) -> None:
        placed = [Placed(**row) for row in event.data["placement"]]
        self._console.print(placement_table([p for p in placed if p.kind == "model"], "Placement", most=12))

    def _show_features(self, event: Event) -> None:
        for part in features_guessed(event.data["features"], event.data.get("notes", ())):
            self._console.print(part, soft_wrap=isinstance(part, Text))

    def _show_planned(self, event: Event) -> None:
        self._print("chosen: ", " ".join(f"{key}={value}" for key, value in event.data.items()))

    def _show_epoch(self, event: Event) -> None:
        data = event.data
        self._print(
            f"epoch {data['epoch']}/{data['epochs']}  step {event.step}  {data['steps_per_s']:.4g} steps/s  "
            f"{data['examples_per_s']:,.0f} examples/s  {numbers(data['metrics'])}"
        )

    def _show_preparing(self, event: Event) -> None:
        self._print(event.data["text"])

    def _show_visitation(self, event: Event) -> None:
        words = {"0": "never", "1": "once", "2": "twice", "3+": "more often"}
        counts = ", ".join(f"{number:,} {words[times]}" for times, number in event.data["seen"].items() if number)
        self._print(f"  examples trained on in {event.data['steps']} steps: {counts}")

    def _show_evaluation(self, event: Event) -> None:
        data = event.data
        of = f" of step {event.step}" if data["mode"].startswith("sidecar") else ""  # others come after their epoch
        result = f"({data['mode']}, {data['examples_seen']} examples)  {numbers(data['metrics'])}"
        self._print(
            f"step {event.step} {result}  in {data['path']}" if "path" in data else f"  evaluation{of} {result}"
        )

    def _show_learning_rate(self, event: Event) -> None:
        data = event.data
        self._print(f"  learning rate {data['before']:.4g} -> {data['value']:.4g}: {data['reason']}")

    def _show_warning(self, event: Event) -> None:
        warner(self._console)(event.data["message"])

    def _show_waiting(self, event: Event) -> None:
        data = event.data
        limit = f"up to {data['until_s']:.0f} s without a chief"
        self._print(f"{data['task']} is waiting for a checkpoint in {data['folder']}, {limit}")

    def _show_restored(self, event: Event) -> None:
        self._print(f"resumed from step {event.step} ({event.data['path']})")

    def _show_stopping(self, event: Event) -> None:
        self._print(f"{event.data['signal']}: saving a checkpoint, then exiting; repeat to exit immediately")

    def _show_failure(self, event: Event) -> None:
        data = event.data
        self._print(("failure:", "red"), f" {data['task']} {data['cause']}; {data['action']}")

    def _show_recovery(self, event: Event) -> None:
        data = event.data
        after = f"after {data['seconds']:.1f} s, {data['steps_lost']} steps lost"
        self._print(("recovered", "green"), f" from the loss of {data['task']} {after}")

    def _show_packing(self, event: Event) -> None:
        data = event.data
        self._print(f"{data['num_steps']} steps per execution: a step takes {data['step_s'] * 1000:.1f} ms on a worker")

    def _show_network(self, event: Event) -> None:
        self._print(f"the model is one of {event.data['library']}; tf-keras trains it")

    def _show_lookups(self, event: Event) -> None:
        for decided, once in ((True, "sent once"), (False, "sent each time")):
            lookups = [lookup for lookup in event.data["lookups"] if bool(lookup["deduplicate"]) == decided]
            if lookups:
                self._print(f"{_shares(lookups)} of a batch's ids are distinct; duplicates are {once}")

    def _show_export(self, event: Event) -> None:
        self._print(f"exported step {event.step} to {event.data['path']}")

    def _show_predictions(self, event: Event) -> None:
        data = event.data
        self._print(f"{data['count']} predictions of step {event.step} in {data['path']}")

    def _show_end(self, event: Event) -> None:
        if event.data["step_time"]:
            self._print(step_time_line(event.data["step_time"]))
        if measured := event.data.get("staleness"):  # earlier versions did not measure it
            self._print(staleness_line(measured))
        first_s = event.data["time_to_first_step_s"]
        first = "" if first_s is None else f" (first step after {first_s:.1f} s)"
        last, own = "", event.data.get("this_process")  # earlier versions did not record it
        if own is not None and own["steps"] < (event.step or 0):
            number = f"the last {own['steps']}" if own["steps"] else "none"
            last = f", {number} of them by this process in {own['seconds']:.1f} s"
        text = f" {event.step} steps in {event.wall_s:.1f} s{first}{last}  {numbers(event.data['metrics'])}"
        self._print(("completed", "green"), text)
        if own is not None and not own["steps"]:
            self._print(("hint:", "yellow"), " the run was complete; to train on, set trainer.epochs higher")
        if _at_chance(event.data["metrics"]):
            self._print(("hint:", "yellow"), f" {_AT_CHANCE}")


def _at_chance(metrics: Mapping[str, float | None]) -> bool:
    """Whether there are AUCs, and all are those of random predictions."""
    aucs = [value for name, value in metrics.items() if name.rpartition("_")[2] == "auc"]
    return bool(aucs) and all(value is not None and 0.49 <= value <= 0.51 for value in aucs)


def _shares(lookups: Sequence[Mapping[str, Any]]) -> str:
    """The first layers by name, and the shares of distinct ids that they saw."""
    layers = ", ".join(lookup["layer"] for lookup in lookups[:3])
    more = f" and {len(lookups) - 3} more" if len(lookups) > 3 else ""
    shares = sorted({f"{lookup['distinct']:.0%}" for lookup in lookups}, key=lambda share: int(share[:-1]))
    return f"{layers}{more}: {' to '.join(dict.fromkeys((shares[0], shares[-1])))}"


def step_time_line(found: Mapping[str, Any]) -> str:
    """The stages of a step on a worker by their share of the time, and the bottleneck."""
    seconds = {name: found[f"{name}_s"] for name in _STAGES}
    whole = sum(seconds.values())
    parts = ", ".join(f"{_STAGES[name]} {seconds[name] / whole:.0%}" for name in seconds)
    return f"a step takes {whole * 1000:.3g} ms on a worker: {parts}; the bottleneck is {_STAGES[found['bottleneck']]}"


def staleness_line(measured: Mapping[str, Any]) -> str:
    """The mean staleness of updates, and how stale the most stale ones were."""
    worst = ", ".join(f"{name} {measured[name]:,}" for name in ("p95", "p99", "max"))
    return f"staleness of updates: mean {measured['mean']:.3g}, {worst}"


def _progress_text(progress: Progress) -> str:
    loss = "" if progress.loss is None else f"  loss {progress.loss:.4g}"
    last = f"  (last epoch: {numbers(progress.metrics)})" if progress.metrics else ""
    return (
        f"epoch {progress.epoch}/{progress.epochs}  step {progress.step}/{progress.steps}  "
        f"{progress.steps_per_s:.4g} steps/s  {progress.examples_per_s:,.0f} examples/s{loss}{last}"
    )


def progress_line(progress: Progress) -> Table:
    """A progress bar with a text."""
    table = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=progress.steps, completed=min(progress.step, progress.steps), width=24)
    table.add_row(bar, _progress_text(progress) if progress.step else "starting the first step")
    return table
