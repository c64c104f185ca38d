"""Runs as rows: one value per column; axes, filters, sorting, and folding over seeds."""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from psrun.config import schema
from psrun.errors import ConfigError
from psrun.files import as_mapping, as_number
from psrun.results.run_folder import flat
from psrun.results.run_state import natural, printable
from psrun.runs.report.runs import Run
from psrun.runs.report.spread import Spread
from psrun.runs.sweeps import sweep
from psrun.runs.sweeps.sweep import best_of

SEED = "seed"
BEST = "best_"  # before the name of the metric by which checkpoints are compared
FOLDED = "seeds"
SEEDS = "all seeds"  # of the runs that are folded; FOLDED is the number of those with the values
MEASURED = ("steps", "examples", "steps_per_s", "examples_per_s", "wall_s", "recoveries")
VIRTUAL = ("virtual.steps_per_s", "virtual.examples_per_s", "virtual.time_s")  # of runs in virtual time
_LONGEST_LIST = 40  # characters of values that are shown
_LONGEST_MAPPING = 20
_FEATURES = "data.features"
_NAME = "name"  # that people gave a run
_TYPES = ("kind", "_target_")  # the choice of a group
_ASIDE = ("tracker", "profile", "system")  # what does not change what a run trains: compared where it was chosen
# How a run was started, and not what it trained.
NOT_COMPARED = ("resume", "run.name", "run.verbose", "task.type", "task.index")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "==": operator.eq,
    "=": operator.eq, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_CONDITION = re.compile(r"\s*(?P<key>[^<>=!\s]+)\s*(?P<operator><=|>=|!=|==|=|<|>)\s*(?P<value>.*?)\s*")

Row = dict[str, Any]


def row(run: Run) -> Row:
    """All values of a run by column: configuration, choices of groups, run.json, metrics."""
    skipped = ("placement", "checkpoints", "overrides", "error", "recoveries", "steps", "metrics", "staleness")
    results = flat({name: value for name, value in run.result.items() if name not in skipped})
    if run.config:  # which has them, too
        results = {key: value for key, value in results.items() if not key.startswith("data.features.")}
    return {**results, **brief_row(run)}


def brief_row(run: Run) -> Row:
    """The values of a run without those of run.json that are shown only where they are named."""
    steps = as_mapping(run.result.get("steps"))
    stale = flat({"staleness": as_mapping(run.result.get("staleness"))})
    recoveries = run.result.get("recoveries")
    called = {} if run.called is None else {_NAME: run.called}
    # An experiment is not a key of the configuration.
    experiment = {key: value for key, value in run.overrides.items() if key == "experiment"}
    return {
        **{name: each for name, each in stale.items() if as_number(each) is not None},
        **{f"steps.{name}": value for name, value in steps.items()},
        **experiment, **run.used, **mappings(run.used), **choices(run.config),
        **called,
        "run": run.name, "folder": printable(run.path), "status": run.state.shown_status, **metrics(run),
        "steps": as_number(steps.get("applied")), "examples": num_examples(run),
        **{name: as_number(run.result.get(name)) for name in MEASURED[2:5]}, **virtual(run),
        "recoveries": len(recoveries) if isinstance(recoveries, list) else None, "error": run.error,
    }  # fmt: skip


def virtual(run: Run) -> dict[str, float]:
    """The columns of VIRTUAL; empty for a run that is not in virtual time."""
    values = flat({"virtual": as_mapping(run.result.get("virtual"))})
    return {name: float(values[name]) for name in VIRTUAL if as_number(values.get(name)) is not None}


def examples_per_step(values: Mapping[str, Any]) -> int | None:
    """The examples of one update, which may have several batches; None if they are not known.

    Args:
      values: with `steps_per_s` and `examples_per_s`.
    """
    steps = as_number(values.get("steps_per_s"))
    examples = as_number(values.get("examples_per_s"))
    if not steps or not examples:
        return None
    return round(examples / steps)


def num_examples(run: Run) -> int | None:
    """The examples of the updates of a run, repeated ones included; None if they are not known.

    A resumed run counts as if it had had its present batch size and mode from the start.
    """
    steps = as_number(as_mapping(run.result.get("steps")).get("applied"))
    per_step = examples_per_step(run.result) or examples_per_step(as_mapping(run.result.get("virtual")))
    if steps is None or per_step is None:
        return None
    return round(steps * per_step)


def metrics(run: Run) -> dict[str, float | None]:
    """The final metrics, those of evaluations first; before them the metric of the best checkpoint, as best_METRIC."""
    values: dict[str, float | None] = {}
    best = best_of(run.result)
    if best:
        values[f"{BEST}{best['metric']}"] = as_number(best["value"])
    for name, value in as_mapping(run.result.get("metrics")).items():
        values[name] = as_number(value)
    return {name: values[name] for name in sorted(values, key=_importance)}


def metric_names(runs: Sequence[Run]) -> list[str]:
    """The metrics that any of the runs has, in the order of `metrics`."""
    return sorted(dict.fromkeys(name for run in runs for name in metrics(run)), key=_importance)


def _importance(metric: str) -> int:
    if metric.startswith(BEST):
        return 0
    return 1 if metric.startswith("val_") else 2


def choices(config: Mapping[str, Any]) -> dict[str, str]:
    """The choice of each group: {'partitioner': 'min_size', 'optimizer': 'Adagrad'}."""
    by_group = {}
    for key, value in config.items():
        if not key.endswith(_TYPES):
            continue
        group, _, last = key.rpartition(".")
        if last in _TYPES and group and "." not in group:
            by_group[group] = str(value).rpartition(".")[2]
    return by_group


def mappings(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The mappings below a key of a group, such as 'data.features.price', by dotted key."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in config.items():
        if key.count(".") < 2:
            continue
        parts = key.split(".")
        for count in range(len(parts) - 1, 1, -1):
            outer = found.setdefault(".".join(parts[:count]), {})
            outer[parts[count]] = value
            value = outer
    return found


def axes(runs: Sequence[Run]) -> list[str]:
    """The keys in which runs differ: first the overrides of the command lines, in their order, then other keys.

    What follows from another choice (the number of shards, where only one of two partitioners has any) is left out
    unless it was overridden. A mapping that only some of the runs have, such as a feature, is one key.
    """
    configured = [run for run in runs if run.config]
    if len(configured) < 2:
        return []
    rows = [{**choices(run.config), **each} for run, each in zip(configured, _joined(configured))]
    overridden: dict[str, None] = {}
    for run, each in zip(configured, rows):
        overrides = run.overrides
        each |= {"experiment": overrides["experiment"]} if "experiment" in overrides else {}
        overridden |= dict.fromkeys(overrides)
    keys = dict.fromkeys([*overridden, *(key for each in rows for key in each)])
    return [key for key in keys if _is_axis(key, rows, key in overridden)]


def _joined(runs: Sequence[Run]) -> list[Row]:
    """The configurations of runs, in which a mapping that not all of them have is one value.

    So are the features of data if most of them are not in all runs.
    """
    nested = [mappings(run.config) for run in runs]
    having = Counter(key for each in nested for key in each)
    partial = {key: None for key, number in having.items() if number < len(runs)}
    names = {f"{_FEATURES}.{name}" for each in nested for name in each.get(_FEATURES, {})}
    if 2 * len(partial.keys() & names) > len(names):
        partial[_FEATURES] = None

    def is_inside(key: str) -> bool:
        parts = key.split(".")
        return any(".".join(parts[:count]) in partial for count in range(2, len(parts)))

    whole = [key for key in partial if not is_inside(key)]
    inside = {key for key in set().union(*(run.config for run in runs)) if is_inside(key)}
    return [
        {key: value for key, value in run.config.items() if key not in inside}
        | {key: each[key] for key in whole if key in each}
        for run, each in zip(runs, nested)
    ]


def _is_axis(key: str, rows: Sequence[Row], overridden: bool) -> bool:
    group, _, last = key.rpartition(".")
    if key in NOT_COMPARED or sweep.is_own_key(key) or (last in _TYPES and "." not in group):
        return False
    if is_aside(key) and not overridden:
        return False
    if not any(key in each for each in rows) or not differs(each.get(key) for each in rows):
        return False
    if overridden or not group:
        return True
    alike: dict[Any, list[Any]] = {}
    for each in rows:
        alike.setdefault(each.get(key.partition(".")[0]), []).append(each.get(key))
    return any(differs(values) for values in alike.values())


def is_aside(key: str) -> bool:
    """Whether a key does not change what a run trains."""
    return key.partition(".")[0] in _ASIDE


def differs(values: Iterable[Any]) -> bool:
    """Whether there are different values; 1 and 1.0 are equal."""
    objects = {id(value): value for value in values}  # most values of many runs are the same object
    return len({_text(value) for value in objects.values()}) > 1


def _text(value: Any) -> str:
    """A text that is the same for equal values: 1 and 1.0."""
    plain = int(value) if isinstance(value, float) and value.is_integer() else value
    return json.dumps(plain, sort_keys=True, default=str)


def is_of_worker(key: str) -> bool:
    """Whether a column has the staleness of a single worker, which is shown only where it is named."""
    return key.startswith("staleness.by_worker.")


def full_key(key: str, rows: Sequence[Row]) -> str:
    """The column that `key` names, whole or by its end. Raises ConfigError if there is none, or several."""
    keys = {name for each in rows for name in each}
    if key in keys:
        return key
    ends = sorted(name for name in keys if name.endswith(f".{key}") and not is_of_worker(name))
    if not ends:
        ends = sorted(name for name in keys if name.endswith(f".{key}"))
    if len(ends) > 1:
        raise ConfigError(f"'{key}' is ambiguous: {' or '.join(ends)}; use the full name")
    if not ends:
        near = schema.did_you_mean(key, keys)
        hint = near if near.startswith(" Did") else " See the keys in config.yaml and run.json of the runs."
        raise ConfigError(f"no run has '{key}'.{hint}")
    return ends[0]


def key_of(text: str) -> str:
    """The key that a condition compares, as written. Raises ConfigError if it is not a comparison."""
    return _compared(text)["key"]


def _compared(text: str) -> re.Match[str]:
    parsed = _CONDITION.fullmatch(text)
    if parsed is None or parsed["value"][:1] in ("<", ">", "="):  # such as =>
        raise ConfigError(f"--where '{text}' is not a condition, such as 'cluster.num_workers=2' or 'val_auc>0.7'")
    return parsed


def condition(text: str, rows: Sequence[Row]) -> Callable[[Row], bool]:
    """The condition of `--where TEXT`, such as 'val_auc>0.7'. A row without the value meets only `!=`.

    A list, such as the marks, is equal to each of its values. The `name` of a run that has none is that of its folder.

    Raises:
      ConfigError: it is not a comparison, or no run has the key.
    """
    parsed = _compared(text)
    key = parsed["key"]
    if key != _NAME:
        key = full_key(key, rows)
    sign = parsed["operator"]
    expected = "" if parsed["value"] == "null" else parsed["value"]
    limit: float | None = None
    with contextlib.suppress(ValueError):
        limit = float(expected)
    if sign in ("<", "<=", ">", ">=") and limit is None:
        raise ConfigError(f"--where '{text}': '{expected}' is not a number; {sign} requires one")
    compare = _OPERATORS[sign]

    def holds(each: Row) -> bool:
        value = each.get(key)
        if key == _NAME and value is None:
            value = os.path.basename(each["folder"])
        if isinstance(value, list) and sign in ("=", "==", "!="):
            return compare(expected in [shown(value), *map(shown, value)], True)
        if limit is not None and as_number(value) is not None:
            return compare(value, limit)
        return compare(shown(value), expected) if sign in ("=", "==", "!=") else False

    return holds


def matching(rows: Sequence[Row], where: Sequence[str]) -> list[Row]:
    """The rows that meet all conditions, see `condition`. Raises ConfigError also if none does."""
    conditions = [condition(text, rows) for text in where]
    met = [row for row in rows if all(holds(row) for holds in conditions)]
    if not met:
        message = f"none of {len(rows)} runs matches --where {', '.join(where)}; use another condition"
        raise ConfigError(message)
    return met


def ordered(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Rows sorted by the first of `keys`, then the next; '-KEY' is descending. Rows without the value come last."""
    result = list(rows)
    for key in reversed(keys):
        name = sort_key(key, rows).removeprefix("-")
        has = [each for each in result if each.get(name) is not None]
        has.sort(key=lambda each: _rank(each[name]), reverse=key.startswith("-"))
        result = has + [each for each in result if each.get(name) is None]
    return result


def sort_key(key: str, rows: Sequence[Row]) -> str:
    """KEY or '-KEY' with the whole name of the column. Raises ConfigError as `full_key`."""
    sign = "-" if key.startswith("-") else ""
    return sign + full_key(key.removeprefix("-"), rows)


def _rank(value: Any) -> tuple[int, float, list[tuple[int, int | str]]]:
    plain = as_number(value.mean if isinstance(value, Spread) else value)
    return (1, 0, natural(shown(value))) if plain is None else (0, plain, [])


def groups(runs: Sequence[Run]) -> list[int]:
    """The number of each run's group; runs that differ only in the seed have the same number."""
    numbers: dict[str, int] = {}
    group_of_run = []
    named = {key for run in runs for key in run.overrides}
    for index, run in enumerate(runs):
        others = {}
        for key, value in run.config.items():
            if key in (SEED, *NOT_COMPARED) or sweep.is_own_key(key):
                continue
            if key in named or not is_aside(key):
                others[key] = value
        what = _text([others, run.overrides.get("experiment")]) if run.config else str(index)
        group_of_run.append(numbers.setdefault(what, len(numbers)))
    return group_of_run


def folded(rows: Sequence[Row], numbers: Sequence[int], columns: Sequence[str]) -> list[Row]:
    """Joins the rows of a group whose seeds differ: measured values become a Spread.

    Args:
      numbers: of the rows' groups.
      columns: that a joined row has; beside them it has the status, the error, FOLDED and SEEDS.
    """
    together: dict[int, list[Row]] = {}
    for each, which in zip(rows, numbers):
        together.setdefault(which, []).append(each)
    return [
        merged
        for same in together.values()
        for merged in ([_one(same, columns)] if differs(each.get(SEED) for each in same) else same)
    ]


def _one(same: Sequence[Row], columns: Sequence[str]) -> Row:
    """The row of runs that differ only in the seed. If any of them is completed, measured values are its values."""
    completed = [each for each in same if each["status"] == "completed"]
    measured = completed or same
    merged: Row = {}
    for key in columns:
        values = [each[key] for each in same if each.get(key) is not None]
        numbers = [value for value in values if as_number(value) is not None]
        if len(numbers) == len(values):
            merged[key] = _spread(key, measured)
        elif not differs(values):
            merged[key] = values[0]
        else:
            merged[key] = ", ".join(map(shown, values))
    merged |= {SEED: None, FOLDED: _num_seeds(measured), SEEDS: _num_seeds(same)}
    counts = Counter(each["status"] for each in same)
    merged["status"] = next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {s}" for s, n in counts.items())
    merged["error"] = next((each["error"] for each in same if each["error"]), "")
    return merged


def _num_seeds(same: Sequence[Row]) -> int:
    return len({_text(each.get(SEED)) for each in same})


def _spread(key: str, same: Sequence[Row]) -> Any:
    """The spread of a column over seeds; the value if it is the same for all. None without a value.

    Runs of one seed, such as a reproduction, count as their mean.
    """
    values = [each[key] for each in same if each.get(key) is not None]
    if not differs(values):
        return values[0] if values else None
    by_seed: dict[str, list[float]] = {}
    for each in same:
        if (value := as_number(each.get(key))) is not None:
            by_seed.setdefault(_text(each.get(SEED)), []).append(value)
    means = [statistics.fmean(values) for values in by_seed.values()]
    return Spread.of(means) if len(means) > 1 else means[0]


def briefly(values: Sequence[Any], *, distinct: bool = False) -> list[str]:
    """The values of a column as short texts.

    Args:
      distinct: whether different values must have different texts; otherwise numbers may be rounded to the same.
    """
    numbers_by_text: dict[str, dict[str, int]] = {}  # of different values with the same text
    for value in values:
        alike = numbers_by_text.setdefault(_brief(value), {})
        alike.setdefault(_text(value), len(alike) + 1)
    return [_distinguished(value, numbers_by_text[_brief(value)], distinct) for value in values]


def _distinguished(value: Any, alike: Mapping[str, int], distinct: bool) -> str:
    if len(alike) > 1 and isinstance(value, (list, dict)):
        return f"{_brief(value)} ({alike[_text(value)]})"
    return repr(value) if len(alike) > 1 and isinstance(value, float) and distinct else _brief(value)


def _brief(value: Any) -> str:
    text = shown(value)
    if isinstance(value, list) and len(text) > _LONGEST_LIST:  # such as a vocabulary; CSV and JSON have all of it
        return f"{len(value):,} values"
    if isinstance(value, dict) and len(text) > _LONGEST_MAPPING:
        target = str(value.get("_target_", "")).rpartition(".")[2]
        return target or f"{len(value):,} keys"
    return text


def shown(value: Any) -> str:
    """A value as text for users; empty for None."""
    if isinstance(value, Spread):
        return f"{shown(value.mean)} ± {rounded(value.deviation, digits=2)}"
    if isinstance(value, float):
        return rounded(value, digits=4)
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, default=str)


def rounded(value: float, *, digits: int) -> str:
    """A number as text, with `digits` significant digits, ties away from zero; a larger number below 1e9 is whole.

    page.js has the same rule, `shown`: the page and the terminal show the same text for the same number.
    """
    if not math.isfinite(value):
        return str(value)
    if 10**digits - 0.5 <= abs(value) < 1e9:
        return f"{Decimal(value).quantize(Decimal(1), ROUND_HALF_UP):,}"
    rounded = Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal_from_float(value)
    return f"{float(rounded):.{digits}g}"
