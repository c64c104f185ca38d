"""run.json as the sum of a run's events.

The run folder applies each event once, after it has written it to metrics.jsonl. Where run.json is lost, the events of
metrics.jsonl are folded again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from psrun.results import staleness
from psrun.results.events import Event

IN_RUN_JSON = "in_run_json"  # false in an event that run.json does not have: its writer has metrics.jsonl only
PENDING = "pending_recovery"  # the loss that ended an attempt, until a later one trains
State = Mapping[str, Any]
Change = Callable[[State, Event], Mapping[str, Any]]  # the keys of run.json that an event sets


def fold(state: State, event: Event) -> dict[str, Any]:
    """The content of run.json after one more event. An event of a kind that sets no key changes nothing.

    An event `result` has all of run.json: of a run whose earlier events are not in metrics.jsonl, or count no more.
    """
    if event.kind == "result":
        return dict(event.data["result"])
    change = CHANGES.get(event.kind)
    return {**state, **(change(state, event) if change else {})}


def of_events(events: Iterable[Event]) -> dict[str, Any]:
    """The result of folding the events of metrics.jsonl that run.json has.

    Events that another version of psrun wrote in another form are left out.
    """
    state: dict[str, Any] = {}
    for event in events:
        if event.data.get(IN_RUN_JSON) is False:
            continue
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            state = fold(state, event)
    return state


def _given(state: State, event: Event) -> State:
    """The event's data are keys of run.json."""
    return event.data


def _ended(state: State, event: Event) -> State:
    """A run that has not begun has no clock."""
    if "started_s" not in state:
        return event.data
    return {**event.data, "wall_s": event.wall_s}


def _under(key: str) -> Change:
    return lambda state, event: {key: event.data}


def _begun(state: State, event: Event) -> State:
    """A process begins or resumes the run; without overrides it keeps the recorded ones."""
    overrides = event.data["overrides"] or state.get("overrides", [])
    goes_on = {"search": None} if state.get("search") else {}
    return {"status": "running", "exit_code": None, "error": None, **goes_on, **event.data, "overrides": overrides}


def _data(state: State, event: Event) -> State:
    return {**event.data, "evaluation": state.get("evaluation")}


def _more_of_data(state: State, event: Event) -> State:
    return {"data": {**state.get("data", {}), **event.data}}


def _later_data(state: State, event: Event) -> State:
    return {"later_data": {**state.get("later_data", {}), **event.data}}


def _placement(state: State, event: Event) -> State:
    balance = dict(event.data)
    return {"placement": balance.pop("placement"), "balance": balance}


def _tracker(state: State, event: Event) -> State:
    """Where a tracker has the run, by the name of the tracker; the place in MLflow is also at `tracker`."""
    record = dict(event.data)
    name = record.pop("name")
    changed: dict[str, Any] = {"trackers": {**state.get("trackers", {}), name: record}}
    if record.get("kind") == "mlflow":
        changed["tracker"] = record
    return changed


def _waits(state: State, event: Event) -> State:
    """The totals since the process began replace those of earlier epochs."""
    totals = {name: value for name, value in event.data.items() if name != "epoch"}
    return {"consistency": {**state.get("consistency", {}), **totals}}


def _epoch(state: State, event: Event) -> State:
    return {name: event.data[name] for name in ("metrics", "steps") if name in event.data}  # once there were no steps


def _staleness(state: State, event: Event) -> State:
    """Adds the updates of an epoch."""
    return {"staleness": staleness.together(state.get("staleness") or {}, event.data)}


def _evaluation(state: State, event: Event) -> State:
    """Adds to the metrics of the training. An event of mode=evaluate has a path and belongs to no training."""
    metrics = {} if "path" in event.data else state.get("metrics", {})
    values = {f"val_{name}": value for name, value in event.data["metrics"].items()}
    evaluation = {"step": event.step, **{name: value for name, value in event.data.items() if name != "path"}}
    return {"metrics": {**metrics, **values}, "evaluation": evaluation}


def _checkpoints(state: State, event: Event) -> State:
    """All existing good checkpoints, and all that were found damaged, by step.

    The event has the rows that were added, and the steps of the good checkpoints that are gone.
    """
    rows = []
    for row in state.get("checkpoints", []):
        if not row["good"] or row["step"] not in event.data["removed"]:
            rows.append(row)
    rows += event.data["damaged"]
    rows += event.data["good"]
    return {"checkpoints": sorted(rows, key=lambda row: (row["step"], row["good"]))}


def _recovery(state: State, event: Event) -> State:
    return _with_recoveries(state, [event.data])


def _recoveries(state: State, event: Event) -> State:
    return _with_recoveries(state, event.data["rows"])


def _with_recoveries(state: State, rows: list[State]) -> State:
    """Adds rows, or replaces rows of the same failure: the number of repeated steps is known later."""

    def failure(row: State) -> Any:
        return row.get("task"), row.get("at_s")

    new = [failure(row) for row in rows]
    others = [row for row in state.get("recoveries", []) if failure(row) not in new]
    recovered = {PENDING: None} if rows and PENDING in state else {}
    return {"recoveries": [*others, *rows], **recovered}


def _trained(state: State, event: Event) -> State:
    """If several processes train one after another, the time to the first step is that of the first process."""
    first_s = state.get("time_to_first_step_s") or event.data["time_to_first_step_s"]
    return {**event.data, "time_to_first_step_s": first_s, "wall_s": event.wall_s}


CHANGES: dict[str, Change] = {
    # Processes.
    "begun": _begun,
    "ended": _ended,
    "cluster": _given,
    "replicas": _under("replicas"),
    "tracker": _tracker,
    "consistency": _under("consistency"),
    "code": _under("code"),
    "environment": _under("environment"),
    "reproduction": _under("reproduction"),
    # Model and data.
    "data": _data,
    "sharding": _more_of_data,
    "hashes": _more_of_data,
    "later_data": _later_data,
    "network": _under("network"),
    "library": _under("network"),
    "lookups": _given,
    "placement": _placement,
    "plan": _given,
    "packing": _under("steps_per_execution"),
    "packed": _under("steps_per_execution"),
    "search": _under("search"),
    # Results.
    "epoch": _epoch,
    "waits": _waits,
    "staleness": _staleness,
    "evaluation": _evaluation,
    "last_evaluation": _evaluation,
    "checkpoints": _checkpoints,
    "best_checkpoint": _given,
    "trained": _trained,
    "export": lambda state, event: {"export": event.data["path"]},
    "profile": _under("profile"),
    "predictions": lambda state, event: {"predictions": {**event.data, "step": event.step}},
    # Losses and recoveries.
    "lost": lambda state, event: {PENDING: {**event.data, "step": event.step}},
    "recovery": _recovery,
    "recoveries": _recoveries,
}
