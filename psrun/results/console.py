"""Console output of a run: tables, a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from psrun.cluster.placement import Balance, Placed, balance
from psrun.config.groups import run_argument
from psrun.results import run_state
from psrun.results.events import Event, Progress, Sink
from psrun.results.task_files import Rates

_PLAIN_EVERY_S = 10.0
_AT_CHANCE = (
    "an AUC of 0.5 means random predictions: the model has not learned. Try another optimizer.learning_rate, "
    "optimizer=lazy_adam or more epochs, and check the features and the label"
)
_LEAST_BAR = 8  # columns
_WIDEST = 10_000  # columns of a line that has no end
_INDENT = "  "  # of the lines that go on with the one above
_EVEN = 1.1  # the maximum of the bytes on servers, divided by their mean, up to which they are called balanced
_SCREEN = 24  # lines of a table where there is no terminal
_OTHER_LINES = 12  # of a screen, beside a table
_LEAST_ROWS = 5
_MOST_NAMED = 10  # columns in a line about those that are left out
_EVALUATED_WITHIN_S = 1.0  # for one line with the epoch
# By the kind of event: a mark, its style, and the text about the step and the data of the event.
_LINES = {
    "preparing": ("", "", "{text}"),
    "restored": ("", "", "resumed from step {step} ({path})"),
    "not_restored": ("note:", "yellow", " the run has no checkpoint: it starts from step 0"),
    "network": ("", "", "the model is one of {library}; tf-keras trains it"),
    "note": ("", "", "{text}"),
    "packing": ("", "", "{num_steps} steps per execution: a step takes {step_ms:.1f} ms on a worker"),
    "learning_rate": ("", "", "  learning rate {before:.4g} -> {value:.4g}: {reason}"),
    "early_stopping": ("", "", "{reason}: stopping training"),
    "waiting": ("", "", "{task} is waiting for a checkpoint in {folder}, up to {until_s:.0f} s without a chief"),
    "stopping": ("", "", "{signal}: saving a checkpoint, then exiting; repeat to exit immediately"),
    "failure": ("failure:", "red", " {task} {cause}; {action}"),
    "recovery": ("recovered", "green", " from the loss of {task} after {seconds:.1f} s, {steps_lost} steps lost"),
    "warning": ("warning:", "yellow", " {message}"),
    "export": ("", "", "exported step {step} to {path}"),
    "predictions": ("", "", "{count} predictions of step {step} in {path}"),
    "other_best": ("", "", "{text}"),
    "profile": ("", "", "profiled steps {first} to {last} of {count} tasks: {path}"),
}
_FOLDED_FROM = 5  # equal rows of tasks
_OF_METRICS = "(variables of metrics)"
GUESSED = "Inferred features (data.features=null)"


def numbers(metrics: Mapping[str, float | None]) -> str:
    """'loss 0.1234  auc 0.9'; None, as NaN is recorded in JSON, is shown as nan."""
    return "  ".join(f"{name} {'nan' if value is None else f'{value:.4g}'}" for name, value in metrics.items())


def wide_unless_terminal(console: Console) -> Console:
    """The console. In a file or a pipe, its tables are as wide as their cells need."""
    if not console.is_terminal:
        console.width = _WIDEST
    return console


def warner(console: Console) -> Callable[[str], None]:
    """A function that prints a warning."""
    return lambda text: print_folded(console, Text.assemble(("warning:", "yellow"), f" {text}"))


def print_folded(console: Console, text: Text) -> None:
    """Prints a text; on a terminal in lines that fit, broken between words."""
    console.print(folded(text, line_width(console)), highlight=False, soft_wrap=True)


def line_width(console: Console) -> int | None:
    """The columns of a line; None where lines have no end, in a file or a pipe."""
    return console.width if console.is_terminal else None


def folded(text: Text, width: int | None) -> Text:
    """The text in lines of at most `width` columns (None: without an end); the lines after the first are indented.

    It is broken between words. A longer word, such as a path, and a command of psrun stay whole, so that they can be
    copied.
    """
    if width is None:
        return text
    lines = Text()
    column = 0
    for index, word in enumerate(_words(text)):
        length = word.cell_len
        is_begun = column > len(_INDENT)
        if is_begun and length and column + 1 + length > width:
            lines.rstrip()
            lines.append(f"\n{_INDENT}")
            column = len(_INDENT)
        elif index and (length or is_begun or not lines.plain.strip()):
            lines.append(" ")
            column += 1
        lines.append_text(word)
        column += length
        _, is_broken, last = word.plain.rpartition("\n")
        if is_broken:
            column = len(last)
    return lines


def _words(text: Text) -> list[Text]:
    """The words between blanks; a command of psrun, up to the end of the text or a punctuation mark, is one."""
    words: list[Text] = []
    is_command = False
    for word in text.split(" "):
        if is_command:
            words[-1] = Text(" ").join([words[-1], word])
        else:
            words.append(word)
            is_command = word.plain.lstrip("(") == "psrun"
        if word.plain.endswith((";", ",", ".", ")")) or "\n" in word.plain:
            is_command = False
    return words


def in_lines(parts: Iterable[str], width: int | None) -> str:
    """Parts with two blanks between them, in lines of at most `width` columns (None: without an end).

    Each part stays whole; the lines after the first are indented.
    """
    lines: list[str] = []
    for part in parts:
        if lines and (width is None or len(lines[-1]) + 2 + len(part) <= width):
            lines[-1] += f"  {part}"
        else:
            lines.append(f"{_INDENT}{part}" if lines else part)
    return "\n".join(lines)


def shown(path: str) -> str:
    """A path of this machine for users: from the current folder if it is below it; others, such as URLs, unchanged."""
    return run_state.shown_path(Path(path)) if os.path.isabs(path) else path


class ConsoleSink(Sink):
    """Prints a run's events on `console`; on a terminal, with a progress line at the bottom.

    Args:
      verbose: whether to show all of the placement, of the look-ups, of the features and of the time to the first step.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._run_folder = ""
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._epoch: Event | None = None  # the last one, until it is known whether an evaluation follows
        self._epoch_ended_s = 0.0
        self._last_plain_s = console.get_time()

    def event(self, event: Event) -> None:
        show = getattr(self, f"_show_{event.kind}", None)
        if show is None and event.kind not in _LINES:
            return
        with self._lock:
            if event.kind != "evaluation":
                self._end_epoch()
            if show:
                show(event)
            else:
                mark, style, text = _LINES[event.kind]
                self._print((mark, style), text.format_map(_values(event)))

    def progress(self, progress: Progress) -> None:
        with self._lock:
            self._end_old_epoch(progress)
            if self._console.is_terminal:
                self._show_live(ProgressLine(progress))
            else:
                self._plain_progress(progress)

    @property
    def is_terminal(self) -> bool:
        """Whether `view` shows more than the progress."""
        return self._console.is_terminal

    def view(self, what: RenderableType, progress: Progress | None = None) -> None:
        """On a terminal: `what`, such as the tasks of a cluster, above the progress of the training."""
        with self._lock:
            self._end_old_epoch(progress)
            if self._console.is_terminal:
                parts = [what]
                if progress:
                    parts.append(ProgressLine(progress))
                self._show_live(Group(*parts))
            elif progress:
                self._plain_progress(progress)

    def wait(self) -> None:
        """Call while no event comes: an epoch is printed after a while, even if its evaluation has not ended."""
        with self._lock:
            self._end_old_epoch(None)

    def close(self) -> None:
        with self._lock:
            self._end_epoch()
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
        if now - self._last_plain_s >= _PLAIN_EVERY_S and progress.step and progress.has_begun:
            self._last_plain_s = now
            self._print("  ".join(_progress_parts(replace(progress, metrics={}))))  # the epoch has a line

    @property
    def _width(self) -> int | None:
        return line_width(self._console)

    def _print(self, *parts: str | tuple[str, str]) -> None:
        # Assembled, so that brackets in user text are not parsed as markup.
        print_folded(self._console, Text.assemble(*parts))

    def _print_whole(self, *parts: str | tuple[str, str]) -> None:
        """Prints lines that are not folded: they are, or a person is to copy them."""
        self._console.print(Text.assemble(*parts), highlight=False, soft_wrap=True)

    def _show_start(self, event: Event) -> None:
        self._run_folder = event.data["run_folder"]
        title = event.data["title"]
        lines = in_lines([title, f"run folder {shown(self._run_folder)}"], self._width)
        self._print_whole((title, "bold"), lines.removeprefix(title))
        for note in event.data["notes"]:
            self._print(("note:", "yellow"), f" {note}")

    def _show_placement(self, event: Event) -> None:
        model = [Placed(**row) for row in event.data["placement"] if row["kind"] == "model"]
        if self._verbose:
            self._console.print(placement_table(model, "Placement"))
            return
        line = placement_line(model, event.data.get("num_ps") or 0)
        if line:
            self._print(line)

    def _show_features(self, event: Event) -> None:
        rows = event.data["features"]
        left_out = ""
        most = None
        if not self._verbose:
            left_out = _left_out([row for row in rows if row["dtype"] == "omitted"])
            rows = [row for row in rows if row["dtype"] != "omitted"]
            height = self._console.height if self._console.is_terminal else _SCREEN
            most = max(_LEAST_ROWS, height - _OTHER_LINES)
        if rows:
            self._print_features(rows, most)
        if left_out:
            self._print(f"left out: {left_out}")
        for note in event.data.get("notes", ()):
            self._print(note)

    def _print_features(self, rows: Sequence[Mapping[str, Any]], most: int | None) -> None:
        """Prints the table of features: the first rows that fit into `most` lines (None: all), and how many follow."""
        count = len(rows) if most is None else min(len(rows), most)
        table = feature_table(rows[:count], GUESSED)
        while most is not None and count > 1 and len(self._console.render_lines(table)) > most:
            count -= 1
            table = feature_table(rows[:count], GUESSED)
        self._console.print(table)
        if count < len(rows):
            self._print(f"and {len(rows) - count:,} more features; psrun -v and psrun plan show all")

    def _show_planned(self, event: Event) -> None:
        self._print("chosen: ", " ".join(f"{key}={value}" for key, value in event.data.items()))

    def _show_epoch(self, event: Event) -> None:
        _epoch_line(event, {}, None)  # an event of another version is reported now
        self._epoch = event
        self._epoch_ended_s = self._console.get_time()

    def _end_old_epoch(self, progress: Progress | None) -> None:
        """Prints the last epoch if the training has gone on, or if its evaluation takes its time."""
        goes_on = progress is not None and self._epoch is not None and progress.step > (self._epoch.step or 0)
        if goes_on or self._console.get_time() - self._epoch_ended_s > _EVALUATED_WITHIN_S:
            self._end_epoch()

    def _end_epoch(self, evaluation: Mapping[str, float | None] | None = None) -> None:
        """Prints the last epoch, unless it was printed, in one line with the metrics of its evaluation."""
        if self._epoch is not None:
            self._print_whole(_epoch_line(self._epoch, evaluation or {}, self._width))
        self._epoch = None

    def _show_evaluation(self, event: Event) -> None:
        data = event.data
        is_sidecar = data["mode"].startswith("sidecar")
        if self._epoch is not None and self._epoch.step == event.step and "path" not in data and not is_sidecar:
            self._end_epoch(data["metrics"])
            return
        self._end_epoch()
        how = f"({data['mode']}, {data['examples_seen']} examples)"
        metrics = _pairs(data["metrics"])
        if "path" in data:
            self._print_parts(f"step {event.step} {how}", *metrics, f"in {shown(data['path'])}")
            for output, estimates in data.get("estimates", {}).items():
                if estimates["segments"]:
                    self._print_segments(output, estimates)
        elif is_sidecar:
            self._print_parts(f"  evaluation of step {event.step} {how}", *metrics)
        else:
            self._print_parts(f"  evaluation {how}", *metrics)

    def _print_parts(self, *parts: str) -> None:
        self._print_whole(in_lines(parts, self._width))

    def _print_segments(self, output: str, estimates: Mapping[str, Any]) -> None:
        wide = Console(width=_WIDEST, file=io.StringIO())  # a row of a narrow terminal is wrapped
        with wide.capture() as captured:
            wide.print(_segments(output, estimates))
        self._print_whole("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def _show_lookups(self, event: Event) -> None:
        if not self._verbose:
            return
        for decided, once in ((True, "sent once"), (False, "sent each time")):
            lookups = [lookup for lookup in event.data["lookups"] if bool(lookup["deduplicate"]) == decided]
            if lookups:
                self._print(f"{_shares(lookups)} of a batch's ids are distinct; duplicates are {once}")

    def _show_end(self, event: Event) -> None:
        self._show_what_was_done(event)
        if _at_chance(event.data["metrics"]):
            self._print(("hint:", "yellow"), f" {_AT_CHANCE}")
        best = event.data.get("best")  # earlier versions had none
        if best:
            self._show_best(best, event.step)
        if self._run_folder:
            self._print_whole(("results:", "bold"), f" {shown(self._run_folder)}")
        follows = event.data.get("next")
        if follows and self._run_folder:
            run = run_argument(Path(shown(self._run_folder)))
            arguments = shlex.join(follows["arguments"])
            self._print_whole(("next:", "bold"), f" psrun {follows['command']} {run} {arguments}".rstrip())

    def _show_best(self, best: Mapping[str, Any], last_step: int | None) -> None:
        """Shows the best evaluation: its metrics, its epoch and its checkpoint.

        Args:
          best: as the event `end` has it.
          last_step: of the training, whose metrics have a line already.
        """
        title = "best:" if best["is_final"] else "best so far:"
        where = f"step {best['step']}"
        if best["epoch"] is not None:
            where = f"epoch {best['epoch']} of {best['epochs']}"
        value, *others = _pairs({best["metric"]: best["value"], **best["metrics"]})
        if best["step"] == last_step:
            where += ", the last"
            others = []
        text = in_lines([f"{title} {value} in {where}", *others], self._width)
        self._print_whole((title, "bold"), text.removeprefix(title))
        if best["checkpoint"]:
            self._print(f"  checkpoint {shown(best['checkpoint'])}")
        elif best["keeps"]:
            self._print(f"  its checkpoint is not kept; to keep it, train with {best['keeps']}")

    def _show_what_was_done(self, event: Event) -> None:
        first_s = event.data["time_to_first_step_s"]
        first = "" if first_s is None else f" (first step after {first_s:.1f} s)"
        last = ""
        own = event.data["this_process"]
        if own["steps"] < (event.step or 0):
            number = f"the last {own['steps']}" if own["steps"] else "none"
            last = f", {number} of them by this process in {own['seconds']:.1f} s"
        self._print(("completed", "green"), f" {event.step} steps in {event.wall_s:.1f} s{first}{last}")
        parts = event.data.get("time_to_first_step_by_part_s")  # earlier versions had none
        if self._verbose and parts:
            seconds = [f"{part} {part_s:.1f}" for part, part_s in parts.items()]
            self._print(f"  seconds to the first step: {', '.join(seconds)}")
        if own["steps"]:
            return  # the last epoch has a line with its metrics
        self._print_parts("  last epoch", *_pairs(event.data["metrics"]))
        early = event.data.get("ended_early")
        ended = "was complete; to train on, set trainer.epochs higher"
        if early:
            ended = f"was ended early ({early}); to train on, change trainer.epochs or early_stopping"
        self._print(("hint:", "yellow"), f" the run {ended}")


def _values(event: Event) -> dict[str, Any]:
    """What the texts of `_LINES` name."""
    values = {**event.data, "step": event.step}
    for name in ("path", "folder"):
        if name in values:
            values[name] = shown(str(values[name]))
    if event.kind == "profile":
        values |= {"first": values["steps"][0], "last": values["steps"][1], "count": len(values["tasks"])}
    if event.kind == "packing":
        values["step_ms"] = event.data["step_s"] * 1000
    return values


def _epoch_line(epoch: Event, evaluation: Mapping[str, float | None], width: int | None) -> str:
    """An epoch and the metrics of its evaluation, in lines of `width` columns, with the rates as far as they fit into
    the first line.
    """
    data = epoch.data
    head = [f"epoch {data['epoch']}/{data['epochs']}", f"step {epoch.step}", *_pairs(data["metrics"])]
    evaluated = _pairs({f"val_{name}": value for name, value in evaluation.items()})
    kind = "virtual " if "virtual" in data else ""
    timed = data["virtual"] if kind else data
    rates = [f"{timed['steps_per_s']:.4g} {kind}steps/s", f"{timed['examples_per_s']:,.0f} {kind}examples/s"]
    whole = "  ".join([*head, *evaluated])
    if width is None or len(whole) <= width:
        return "  ".join(_that_fit([*head, *evaluated], rates, width))
    if not evaluated:
        return in_lines(head, width)
    second = in_lines([_INDENT + evaluated[0], *evaluated[1:]], width)
    return f"{in_lines(_that_fit(head, rates, width), width)}\n{second}"


def _pairs(metrics: Mapping[str, float | None]) -> list[str]:
    """'loss 0.1234' for each metric."""
    return [numbers({name: value}) for name, value in metrics.items()]


def _segments(output: str, estimates: Mapping[str, Any]) -> Table:
    """The metrics of each segment, with the half widths of their intervals, under the metrics of all examples."""
    names = [*estimates["metrics"]]
    table = Table("segment", "examples", "users", *names, title=output or None, box=None, pad_edge=False)
    for row in ({"column": "all", "value": "", **estimates}, *estimates["segments"]):
        segment = f"{row['column']} {row['value']}".strip()
        users = "" if row["users"] is None else f"{row['users']:,}"
        values = [_with_interval(row["metrics"][name], row["intervals"].get(name)) for name in names]
        table.add_row(segment, f"{row['examples']:,}", users, *values)
    return table


def _with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if interval is None else f"{value:.3g}±{(interval[1] - interval[0]) / 2:.1g}"


def _at_chance(metrics: Mapping[str, float | None]) -> bool:
    """Whether there are AUCs, and all are as random predictions have them."""
    aucs = [value for name, value in metrics.items() if name.rpartition("_")[2] == "auc"]
    return bool(aucs) and all(value is not None and 0.49 <= value <= 0.51 for value in aucs)


def _shares(lookups: Sequence[Mapping[str, Any]]) -> str:
    """The first layers by name, and the shares of distinct ids that they saw."""
    layers = ", ".join(lookup["layer"] for lookup in lookups[:3])
    more = f" and {len(lookups) - 3} more" if len(lookups) > 3 else ""
    shares = sorted({f"{lookup['distinct']:.0%}" for lookup in lookups}, key=lambda share: int(share[:-1]))
    return f"{layers}{more}: {' to '.join(dict.fromkeys((shares[0], shares[-1])))}"


def _that_fit(parts: Sequence[str], more: Sequence[str], width: int | None) -> list[str]:
    """All parts, and as many of `more` as fit beside them into `width` columns (None: without an end)."""
    chosen = list(parts)
    for part in more:
        if width is not None and len("  ".join([*chosen, part])) > width:
            break
        chosen.append(part)
    return chosen


def _progress_parts(progress: Progress, width: int | None = None) -> list[str]:
    """What is known, in `width` columns: the rates and the last epoch only if there is room for them."""
    parts = [f"epoch {progress.epoch}/{progress.epochs}", f"step {progress.step}/{progress.steps}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    more = []
    if progress.steps_per_s is not None and progress.examples_per_s is not None:
        more += [f"{progress.steps_per_s:.4g} steps/s", f"{progress.examples_per_s:,.0f} examples/s"]
    if progress.metrics:
        more.append(f"(last epoch: {numbers(progress.metrics)})")
    return _that_fit(parts, more, width)


class ProgressLine:
    """A progress bar and a text in one row, however narrow the terminal is."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress = self._progress
        room = options.max_width - _LEAST_BAR - 1
        text = "starting the first step"
        if progress.step and progress.has_begun:
            text = "  ".join(_progress_parts(progress, room))
        bar_width = min(max(options.max_width - len(text) - 1, _LEAST_BAR), 24)
        table = Table.grid(padding=(0, 1))
        table.add_column(width=bar_width)
        table.add_column(no_wrap=True, overflow="ellipsis")
        done = min(progress.step, progress.steps)
        table.add_row(ProgressBar(total=progress.steps, completed=done, width=bar_width), text)
        yield table


def placement_line(model: Sequence[Placed], num_ps: int) -> str:
    """How many bytes the variables of the model have on how many parameter servers; empty without any there.

    Args:
      num_ps: of the cluster; 0 if it is not known.
    """
    on_servers = [shard for shard in model if shard.task.startswith("ps-")]
    if not on_servers:
        return ""
    found = balance(on_servers, [f"ps-{index}" for index in range(num_ps)])
    sizes = found.bytes_by_task
    total = decimal(sum(sizes.values()))
    if len(sizes) == 1:
        return f"{total} on 1 parameter server"
    where = f"{total} on {len(sizes)} parameter servers"
    if found.max_over_mean <= _EVEN:
        return f"{where}, balanced"
    fullest = max(sizes, key=lambda task: sizes[task])
    return f"{where}, {decimal(sizes[fullest])} of it on {fullest}"


def placement_table(placed: Sequence[Placed], title: str) -> Group:
    """Each variable with its shards, those of all metrics in one row, and the balance of the tasks."""
    rows: dict[tuple[str, str], list[Placed]] = {}
    for shard in placed:
        name = _OF_METRICS if shard.kind == "metric" else shard.variable  # their names do not say of which metric
        rows.setdefault((shard.kind, name), []).append(shard)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading, justify in (("variable", "left"), ("shape", "left"), ("shards on", "left"), ("size", "right")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for (kind, variable), shards in sorted(rows.items(), key=lambda item: -sum(shard.bytes for shard in item[1])):
        style = None if kind == "model" else "dim"
        shape = "x".join(map(str, shards[0].variable_shape)) or "scalar"
        names = [shard.task for shard in shards]
        if kind == "metric":
            shape = ""
            names = sorted(set(names), key=_by_number)
        tasks = " ".join(task for (task,) in folded_rows([(name,) for name in names]))
        table.add_row(variable, shape, tasks, decimal(sum(shard.bytes for shard in shards)), style=style)
    return Group(table, _balance_line(balance(placed)))


def feature_table(rows: Sequence[Mapping[str, Any]], title: str) -> Group:
    """One row per feature of a table of examples; notes under examples."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    keys = []
    for key in ("feature", "dtype", "ids", "values", "missing"):
        if any(row[key] for row in rows):
            keys.append(key)
            justify: Any = "right" if key == "values" else "left"
            table.add_column(key, justify=justify, overflow="fold", no_wrap=key in ("dtype", "values"))
    table.add_column("examples", overflow="fold")
    for row in rows:
        cells: list[RenderableType] = []
        for key in keys:
            cells.append(Text(f"{row[key]:,}" if key == "values" else row[key]))
        style = "dim" if row["dtype"] == "omitted" else None
        table.add_row(*cells, _examples_and_note(row), style=style)
    return Group(Text(title, style="italic"), table)


def _examples_and_note(row: Mapping[str, Any]) -> Group:
    texts = []
    if row["examples"]:
        texts.append(Text(row["examples"], no_wrap=True, overflow="ellipsis"))
    if row["note"]:
        texts.append(Text(row["note"], style="italic"))
    return Group(*texts)


def _left_out(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first columns that are no features, each with the reason, and how many more there are."""
    named = [f"{row['feature']} ({row['note']})" for row in rows[:_MOST_NAMED]]
    text = ", ".join(named)
    more = len(rows) - len(named)
    return f"{text} and {more:,} more (psrun -v and psrun plan show all)" if more else text


def folded_rows(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows of tasks, in which a run of five or more tasks of a job with equal cells is one row.

    Args:
      rows: the name of the task, such as worker-0, and the other cells.
    """
    runs: list[list[tuple[str, ...]]] = []
    for row in rows:
        if runs and _follows(runs[-1][-1], row):
            runs[-1].append(row)
        else:
            runs.append([row])
    together: list[tuple[str, ...]] = []
    for run in runs:
        if len(run) < _FOLDED_FROM:
            together += run
        else:
            together.append((f"{run[0][0]} to {run[-1][0]}", *run[0][1:]))
    return together


def _by_number(task: str) -> tuple[str, int]:
    """The order of tasks: ps-2 before ps-10."""
    job, _, index = task.rpartition("-")
    return (job, int(index)) if index.isdigit() else (task, 0)


def _follows(row: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Whether `after` is the row of the next task of the same job, and equal otherwise."""
    job, _, index = row[0].rpartition("-")
    return index.isdigit() and after[0] == f"{job}-{int(index) + 1}" and row[1:] == after[1:]


def _balance_line(task_balance: Balance) -> Text:
    held = task_balance.bytes_by_task
    sizes = [(task, decimal(held[task])) for task in sorted(held, key=_by_number)]
    parts = ", ".join(f"{task} {size}" for task, size in folded_rows(sizes))
    text = f"total: {parts}"
    if len(task_balance.bytes_by_task) > 1:
        text += f"; the maximum is {task_balance.max_over_mean:.2f} times the mean"
    return Text(text)


@dataclass(frozen=True)
class TaskRow:
    """The state of a task of a cluster, as far as it is known.

    Attributes:
      rates: of the last second; None if they are not known.
      heard_s: seconds since its last heartbeat; None before the first.
    """

    name: str
    state: str
    restarts: int
    memory_bytes: int | None
    rates: Rates | None
    heard_s: float | None


def task_table(rows: Sequence[TaskRow]) -> Table:
    """One row per task."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("task", "state", "restarts", "memory", "CPU", "network in, out", "last heartbeat"):
        table.add_column(heading, justify="left" if heading in ("task", "state") else "right")
    for row in rows:
        memory = "-" if row.memory_bytes is None else decimal(row.memory_bytes)
        heard = "-" if row.heard_s is None else f"{row.heard_s:.1f} s ago"
        processor = network = "-"
        if row.rates is not None:
            processor = f"{row.rates.cpu_percent:.0f} %"
            network = f"{_per_s(row.rates.received_bytes_per_s)}, {_per_s(row.rates.sent_bytes_per_s)}"
        table.add_row(row.name, row.state, str(row.restarts), memory, processor, network, heard)
    return table


def _per_s(rate: float) -> str:
    return f"{decimal(round(rate))}/s"
