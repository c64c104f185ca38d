"""The runs of a report: their state, their configuration and their events, as far as these can be read."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from psrun.config.schema import AUTO
from psrun.errors import ConfigError, DataError
from psrun.files import as_mapping, load_mapping
from psrun.results import run_folder, run_state
from psrun.results.events import METRICS, Event, EventReader
from psrun.results.run_folder import CONFIG, RESULT, flat, whole_facts
from psrun.results.run_state import LEVELS, QUIET_S, RunState, below, existing, natural, printable

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is twenty times as fast
# A key of the outermost mapping with its value, which ends before the next such key; no marker of another document.
_SECTION = re.compile(r"[A-Za-z_]\w*:(?= |$).*\n?(?:(?:[ #]|-(?!--)).*\n?|\n)*", re.MULTILINE)
_SECTIONS_KEPT = 512  # a configuration has about 25
_RATES = ("optimizer.learning_rate", "table_optimizer.learning_rate")
_RESULTS = ("epoch", "evaluation", "staleness")


@dataclass(frozen=True)
class Run:
    """A run, as read from its folder.

    Attributes:
      name: the part of the folder's path that not all runs of the report share.
      config: the resolved configuration, with the guess of a table's features and task in place of null: values by
        dotted key, such as 'cluster.num_workers'.
      problem: what is missing or cannot be read, in one line; empty if all could be read.
    """

    state: RunState
    name: str
    config: Mapping[str, Any]
    problem: str

    @cached_property
    def called(self) -> str | None:
        """The name that people gave the run by `run.name`."""
        return run_folder.read_name(self.path)

    @property
    def path(self) -> Path:
        return self.state.path

    @property
    def result(self) -> Mapping[str, Any]:
        return self.state.result

    @property
    def error(self) -> str:
        """The error of the run, or the problem of its folder, in one line; empty without one."""
        error = as_mapping(self.result.get("error"))
        message = f"{error.get('type', 'error')}: {error.get('message', '')}" if error else self.problem
        return re.sub(r"\s+", " ", message).strip()

    @cached_property
    def used(self) -> Mapping[str, Any]:
        """The configuration with the learning rate that was used in place of `auto`, as far as the run recorded it."""
        keys = [key for key in _RATES if self.config.get(key) == AUTO]
        chosen = as_mapping(self.result.get("chosen"))
        rate = chosen.get("learning_rate")
        if not keys or rate is None:
            return self.config
        if chosen.get("learning_rate_falls"):
            rate = f"{rate:g} falling to 0"
        return {**self.config, **dict.fromkeys(keys, rate)}

    @cached_property
    def written(self) -> Mapping[str, Any]:
        """The configuration as config.yaml has it, without what was guessed from the data; values by dotted key."""
        return flat(load_mapping(self.path / CONFIG, _parse_config)[0])

    @property
    def overrides(self) -> dict[str, str]:
        """The overrides of the command line, by key."""
        return by_key(self.state.overrides)


def find(folders: Sequence[Path]) -> list[Run]:
    """All runs in and below `folders`, once each, sorted by name. Raises ConfigError for a folder without a run."""
    paths: dict[Path, None] = {}
    for folder in folders:
        here = list(below(existing(folder).resolve()))
        if not here:
            raise ConfigError(
                f"there is no run in {folder} or up to {LEVELS} levels below it; name a run folder (with {RESULT}), "
                "a sweep folder, or a parent of these, such as runs/"
            )
        paths |= dict.fromkeys(here)
    base = Path(os.path.commonpath([path.parent for path in paths]))
    names = {path: printable(path.relative_to(base)) for path in paths}
    return [read(path, name) for path, name in sorted(names.items(), key=lambda each: natural(each[1]))]


def events(run: Run) -> tuple[list[Event], str]:
    """The events of a run without results of steps that were trained again, and in one line which of them cannot be
    read; empty if all can."""
    file = run.path / METRICS
    if not os.path.exists(file):
        return [], f"no {METRICS}"
    reader = EventReader(file)
    try:
        parsed = reader.read()
    except OSError as error:
        return [], f"{METRICS} cannot be read: {error.strerror}"
    broken = reader.broken + (reader.unfinished and run.state.status != "running")
    total = len(parsed) + reader.broken + reader.unfinished
    return valid(parsed), f"{broken} of {total} lines of {METRICS} cannot be read" if broken else ""


def valid(happened: Sequence[Event]) -> list[Event]:
    """The events without the results of steps after a checkpoint that the training later started again from."""
    kept: list[Event] = []
    for event in happened:
        if event.kind == "restored" and event.step is not None:
            kept = [each for each in kept if not _is_undone(each, event.step)]
        kept.append(event)
    return kept


def _is_undone(event: Event, restored: int) -> bool:
    of_training = event.kind in _RESULTS and "path" not in event.data  # mode=evaluate writes the path of a checkpoint
    return of_training and event.step is not None and event.step > restored


def read(path: Path, name: str) -> Run:
    """The run in the folder `path`, as far as it can be read."""
    state = run_state.look(path)
    config, problem = config_of(state)
    missing = ": the run has not started, or ended before writing it" if state.problem == f"no {RESULT}" else ""
    problems = [state.problem + missing, problem, state.gone]
    if state.status == "running" and state.quiet_s > QUIET_S and not state.gone:
        problems.append(f"has the status running, but wrote nothing for {state.quiet_s / 3600:.1f} h")
    return Run(state, name, config, "; ".join(filter(None, problems)))


def config_of(state: RunState) -> tuple[Mapping[str, Any], str]:
    """The configuration of a run as in `Run`, and in one line why config.yaml cannot be read.

    Without the file it is what the command line says.
    """
    config, problem = load_mapping(state.path / CONFIG, _parse_config)
    values = flat(_with_guess(config, state))
    if values:
        return values, problem
    return {key: _value(text) for key, text in by_key(state.overrides).items()}, problem


def _with_guess(config: Mapping[str, Any], state: RunState) -> dict[str, Any]:
    """The configuration with what was guessed from the data, as the run has recorded it, where `data` has null."""
    facts = as_mapping(state.result.get("data"))
    with contextlib.suppress(DataError):  # the file is lost: the keys stay null
        facts = whole_facts(facts, state.path)
    features = {name: _options(name, as_mapping(each)) for name, each in as_mapping(facts.get("features")).items()}
    guess = {**as_mapping(facts.get("label")), **({"features": features} if features else {})}
    data = as_mapping(config.get("data"))
    known = {key: value for key, value in guess.items() if key in data and data[key] is None}
    return {**config, "data": {**data, **known}} if known else dict(config)


def _options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a feature as a configuration has them: without a column of the same name."""
    return {key: value for key, value in options.items() if (key, value) != ("column", name)}


def by_key(overrides: Sequence[str]) -> dict[str, str]:
    """The values of overrides of a command line, by key."""
    pairs = [each.partition("=") for each in overrides]
    return {key.lstrip("+~").partition("@")[0]: value for key, _, value in pairs}


def _parse_config(text: str) -> Any:
    """What a configuration in YAML says. Raises ValueError.

    Runs of a sweep differ in few keys, and YAML takes longer than all the rest of a report: a section of the text that
    many runs have is parsed once. A text that is no sequence of sections, which psrun does not write, is parsed whole.
    """
    values: dict[str, Any] = {}
    place = 0
    while place < len(text):
        section = _SECTION.match(text, place)
        parsed = None if section is None else _section(section[0])
        if section is None or parsed is None:
            return _yaml(text)
        values |= parsed
        place = section.end()
    return values or _yaml(text)


@lru_cache(_SECTIONS_KEPT)
def _section(text: str) -> Mapping[str, Any] | None:
    """The mapping that a part of a configuration is, for all who read it; None if it alone is none."""
    try:
        parsed = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError:  # such as an alias of another section
        return None
    return parsed if isinstance(parsed, dict) else None


def _yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _value(text: str) -> Any:
    try:
        return _yaml(text)
    except ValueError:
        return text
