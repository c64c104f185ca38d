"""`psrun diff RUN RUN`: what differs between two runs."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from psrun.errors import ConfigError, ExitCode
from psrun.files import as_mapping, as_number
from psrun.results import run_state
from psrun.results.run_state import printable
from psrun.runs.report import output, ranking, recorded, rows, runs
from psrun.runs.report.recorded import ABSENT, Values
from psrun.runs.report.runs import Run
from psrun.runs.sweeps import sweep

_MOST_ROWS = 20  # of a section; --json has all
_MEASURED = ("steps", "wall_s", "time_to_first_step_s", "examples_per_s", "recoveries")


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun diff ARGUMENTS`.

    Raises:
      ConfigError: a folder does not hold one run, or both are the same.
      PsrunError: the result cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(arguments)
    pair = [_single(run_state.resolve(word)) for word in options.run]
    if pair[0] == pair[1]:
        raise ConfigError(f"{options.run[0]} and {options.run[1]} are the same run; name two runs")
    by_path = {run.path: run for run in runs.find(pair)}
    first, second = (by_path[path] for path in pair)
    sections = _sections(first, second)
    if options.json:
        output.to_stdout(_as_json(first, second, sections))
    else:
        output.to_stdout(_as_text(first, second, sections))
    return ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="psrun diff",
        description="Show what differs between two runs: configuration, code, environment, data, metrics.",
        epilog="The exit code is 0 if both runs can be read, whether or not they differ.",
    )
    parser.add_argument("run", nargs=2, metavar="RUN", help=run_state.WORD_HELP)
    parser.add_argument("--json", action="store_true", help="write all differences as JSON to standard output")
    return parser


def _single(folder: Path) -> Path:
    """The one run in `folder`. Raises ConfigError if there is none, or if the folder holds several."""
    here = runs.find([folder])
    if len(here) > 1 or os.path.exists(folder / sweep.RECORD):
        kind = "is a sweep of" if os.path.exists(folder / sweep.RECORD) else "holds"
        count = f"{len(here):,} {'run' if len(here) == 1 else 'runs'}"
        first = folder / here[0].path.relative_to(folder.resolve())
        raise ConfigError(
            f"{folder} {kind} {count}, and psrun diff compares two runs: name one of them, such as {first}, or compare "
            f"many with psrun report {folder} --against OTHER"
        )
    return here[0].path


@dataclass(frozen=True)
class _Section:
    """What differs in one part of two runs.

    Attributes:
      differs: the two values by key; None for what a run does not have.
      texts: for keys whose values would be too long to show: what to show instead.
      missing: parts that a run does not have, one line each.
    """

    title: str
    differs: Mapping[str, tuple[Any, Any]]
    equal: int
    texts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    missing: Sequence[str] = ()


def _sections(first: Run, second: Run) -> list[_Section]:
    """All parts, those with differences first."""
    made = [part(first, second) for part in (_configuration, _code, _environment, _data, _results)]
    return sorted(made, key=lambda section: not section.differs)


def _section(title: str, first: Values, second: Values, missing: Sequence[str] = (), **more: Any) -> _Section:
    differs = recorded.differing(first, second)
    num_keys = len(first.keys() | second.keys())
    return _Section(title, differs, num_keys - len(differs), missing=missing, **more)


def _missing(what: str, has: Sequence[Any]) -> list[str]:
    """A line if not both runs have a part."""
    without = [name for name, each in zip("ab", has) if not each]
    return [f"{what}: not recorded in {' and '.join(without)}"] if without else []


def _configuration(first: Run, second: Run) -> _Section:
    missing = _missing("config.yaml", (first.config, second.config))
    if missing:
        return _Section("configuration", {}, 0, missing=missing)
    named = [_named(run) for run in (first, second)]
    ordered = dict.fromkeys([*rows.axes([first, second]), *named[0], *named[1]])  # what was chosen, then what follows
    values = [{key: each[key] for key in ordered if key in each} for each in named]
    return _section("configuration", values[0], values[1])


def _named(run: Run) -> dict[str, Any]:
    """The configuration with the choices of groups in place of their types."""
    chosen = rows.choices(run.config)
    types = {f"{group}.{kind}" for group in chosen for kind in ("kind", "_target_")}
    skipped = {*types, *rows.NOT_COMPARED, *(key for key in run.config if key.startswith("sweep."))}
    kept = {key: value for key, value in run.used.items() if key not in skipped}
    experiment = {key: value for key, value in run.overrides.items() if key == "experiment"}
    return {**experiment, **chosen, **kept}


def _code(first: Run, second: Run) -> _Section:
    codes = [as_mapping(run.result.get("code")) for run in (first, second)]
    missing = _missing("code", codes)
    if missing:
        return _Section("code", {}, 0, missing=missing)
    values = [recorded.code(run.path, each) for run, each in zip((first, second), codes)]
    texts: dict[str, tuple[str, str]] = {}
    for name in recorded.copies(codes[0]) | recorded.copies(codes[1]):
        texts[name] = recorded.lines(values[0].get(name), values[1].get(name))
    return _section("code", values[0], values[1], texts=texts)


def _environment(first: Run, second: Run) -> _Section:
    environments = [as_mapping(run.result.get("environment")) for run in (first, second)]
    missing = _missing("environment", environments)
    if missing:  # the few versions that each run records
        versions = [as_mapping(run.result.get("versions")) for run in (first, second)]
        common = versions[0].keys() & versions[1].keys()
        kept = [{f"package {name}": each[name] for name in sorted(common)} for each in versions]
        return _section("environment", kept[0], kept[1], missing)
    values = [recorded.environment(each) for each in environments]
    memory = [recorded.text(recorded.MEMORY, each.get(recorded.MEMORY)) for each in values]
    texts = {recorded.MEMORY: (memory[0], memory[1])}
    return _section("environment", values[0], values[1], texts=texts)


def _data(first: Run, second: Run) -> _Section:
    facts = [as_mapping(run.result.get("data")) for run in (first, second)]
    if missing := _missing("data", facts):
        return _Section("data", {}, 0, missing=missing)
    hashes = [as_mapping(each.get("hashes")) for each in facts]
    values = [{key: value for key, value in each.items() if not isinstance(value, (dict, list))} for each in facts]
    texts: dict[str, tuple[str, str]] = {}
    missing = _missing("hashes of files", hashes) if any(hashes) else []
    if not missing:
        for name in dict.fromkeys([*hashes[0], *hashes[1]]):
            files = [as_mapping(each.get(name)) for each in hashes]
            shown = [recorded.file_text(file) if file else ABSENT for file in files]
            texts[f"file {name}"] = (shown[0], shown[1])
            for value, file in zip(values, files):
                value[f"file {name}"] = recorded.file_identity(file)
    return _section("data", values[0], values[1], missing, texts=texts)


def _results(first: Run, second: Run) -> _Section:
    found = [rows.row(run) for run in (first, second)]
    names = ranking.of_runs([first, second]).first(rows.metric_names([first, second]))
    values = [{name: each.get(name) for name in ("status", *names, *_MEASURED)} for each in found]
    has = [any(value is not None for key, value in each.items() if key != "status") for each in values]
    return _section("metrics", values[0], values[1], _missing("metrics", has))


def _as_json(first: Run, second: Run, sections: Sequence[_Section]) -> str:
    described = [
        {"name": run.name, "folder": printable(run.path), "status": run.state.outcome, "problem": run.problem}
        for run in (first, second)
    ]
    parts = {
        section.title: {
            "differs": {key: {"a": pair[0], "b": pair[1]} for key, pair in section.differs.items()},
            "equal": section.equal,
            "missing": list(section.missing),
        }
        for section in sections
    }
    return json.dumps({"a": described[0], "b": described[1], **parts}, indent=2, default=str) + "\n"


def _as_text(first: Run, second: Run, sections: Sequence[_Section]) -> str:
    console = Console(highlight=False)
    texts = [f"a: {printable(first.path)}\nb: {printable(second.path)}\n"]
    for section in sections:
        if section.differs:
            records = [_record(section, key) for key in list(section.differs)[:_MOST_ROWS]]
            columns = [section.title, "a", "b", *(["b - a"] if section.title == "metrics" else [])]
            texts.append(output.on_paper(console, records, columns, list(_below(section))))
    same = [f"{section.title} ({section.equal:,})" for section in sections if not section.differs and section.equal]
    last = [f"equal: {', '.join(same)}"] if same else []
    last += [line for section in sections if not section.differs for line in section.missing]
    last += [f"{name}: {run.problem}" for name, run in zip("ab", (first, second)) if run.problem]
    return "\n".join([*texts, *("\n".join(last),) * bool(last)]).rstrip("\n") + "\n"


def _record(section: _Section, key: str) -> rows.Row:
    """A row of the table: both values as text, and for metrics their difference."""
    pair = section.differs[key]
    texts = section.texts.get(key) or rows.briefly(pair, distinct=True)
    record = {section.title: key, **{name: text or ABSENT for name, text in zip("ab", texts)}}
    if section.title == "metrics" and all(as_number(value) is not None for value in pair):
        record["b - a"] = rows.shown(float(pair[1]) - float(pair[0]))
    return record


def _below(section: _Section) -> Iterator[str]:
    """The lines under the table of a section."""
    if len(section.differs) > _MOST_ROWS:
        yield f"and {len(section.differs) - _MOST_ROWS:,} more that differ (--json has all)"
    if section.equal:
        yield f"{section.equal:,} equal"
    yield from section.missing
