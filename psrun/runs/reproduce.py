"""`psrun reproduce RUN [FOLDER] [KEY=VALUE...]`: runs a recorded run again, with its code, and compares both."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict, read_write
from rich.console import Console

from psrun import files, process
from psrun.cli import command_line
from psrun.cli.command_line import write_hydra
from psrun.config import composition, parse, targets
from psrun.config.groups import key_of
from psrun.config.run_config import RunConfig
from psrun.data import storage
from psrun.errors import ConfigError, ExitCode, Problem
from psrun.files import as_mapping, load_mapping
from psrun.results import provenance, recorded_config, run_state
from psrun.results.events import METRICS, EventReader
from psrun.results.run_folder import CONFIG, HYDRA, RunFolder, cannot_be_made, flat, write_config
from psrun.runs import reproduction
from psrun.runs.reproduction import Difference, Reproduction, Sample
from psrun.runs.sweeps.sweep import RECORD as SWEEP

_DEFAULT = "runs/reproduced"
_KEPT = {"resume": "reproduces whole runs only; to continue a run, use psrun resume RUN", "mode": "is train; remove it"}


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun reproduce ARGUMENTS`.

    Returns:
      DONE if the results are equal, or within the spread of the seeds; with --dry-run, if nothing differs that matters,
      apart from packages that the run does not import by itself.

    Raises:
      ConfigError: there is no such run, it has no results or no record, or a data file has changed.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    targets.search_modules()  # as a run does: packages of the current folder count
    options = _parser().parse_intermixed_args(arguments)
    folder, overrides = _positional(options.arguments)
    record = _Record.read(run_state.find_named(str(options.run)) or options.run)
    into = _fresh(folder, record.path)
    sample = _sample(record, options.seeds)
    console = Console(highlight=False)
    console.print(record.title, soft_wrap=True, markup=False)
    data = _of_data(record, overrides)
    if data and not options.anyway and not options.dry_run:
        raise ConfigError([Problem(each.what, _changed(each)) for each in data])
    here = provenance.environment()
    differences = [*reproduction.of_environment(record.environment, here), *data]
    code = reproduction.of_code(record.path, record.code, provenance.work_tree(Path.cwd()), _places())
    first = _show_environment(record, here, differences, code, console)
    if options.dry_run:
        return ExitCode.FAILED if any(each.matters for each in first) else ExitCode.DONE
    changes, run = _prepare(record, into, overrides)
    console.print(f"runs in {into}", soft_wrap=True, markup=False)
    ended = _run(into)
    result = RunFolder(into).stored()
    if ended != ExitCode.DONE:
        console.print(f"not reproduced: the run in {into} exited with code {ended}", soft_wrap=True, markup=False)
        return ExitCode.INTERRUPTED if ended == ExitCode.INTERRUPTED else ExitCode.FAILED
    compared = _compared(record, run, result, sample, [*changes, *differences])
    RunFolder(into).emit("reproduction", of=str(record.path), **compared.facts)
    if changes:
        console.print(reproduction.table("Keys", changes))
    console.print(compared.table())
    console.print(compared.verdict, soft_wrap=True, markup=False)
    return ExitCode.DONE if compared.is_reproduced else ExitCode.FAILED


def _show_environment(
    record: _Record,
    here: Mapping[str, Any],
    differences: Sequence[Difference],
    code: Sequence[Difference],
    console: Console,
) -> list[Difference]:
    """Prints what differs from the record, and what of it is the same; of packages, those that the run imports.

    Returns:
      The `differences` without other packages, which are only counted.
    """
    imported = reproduction.imported_packages(record.path, record.code)
    first = [each for each in differences if not reproduction.is_other_package(each, imported)]
    others = [each for each in differences if reproduction.is_other_package(each, imported)]
    console.print(reproduction.table("Environment", [*first, *code]))
    same = reproduction.same(record.environment, here, imported)
    console.print(f"the same: {same}", soft_wrap=True, markup=False)
    if others:
        console.print(reproduction.counted(others), soft_wrap=True, markup=False)
    return first


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun reproduce", description=__doc__.partition(": ")[2])
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder, or a job of a sweep: SWEEP/JOB")
    text = f"a new folder (default: {_DEFAULT}/RUN-again), and keys to change"
    parser.add_argument("arguments", nargs="*", metavar="FOLDER KEY=VALUE", help=text)
    parser.add_argument("--dry-run", action="store_true", help="show how the environment differs; run nothing")
    parser.add_argument("--anyway", action="store_true", help="run although data files have changed")
    text = "runs that differ at most in the seed, for the spread of asynchronous runs; default: the sweep of RUN"
    parser.add_argument("--seeds", action="append", default=[], type=Path, metavar="FOLDER", help=text)
    return parser


def _positional(given: Sequence[str]) -> tuple[Path | None, list[str]]:
    """FOLDER and the overrides."""
    overrides = [each for each in given if "=" in each]
    folders = [each for each in given if "=" not in each]
    if len(folders) > 1:
        raise ConfigError(f"reproduce takes one run and one new folder, not also {', '.join(folders[1:])}")
    problems = [Problem(key_of(each), _KEPT[key_of(each)]) for each in overrides if key_of(each) in _KEPT]
    if any(key_of(each) == "hydra.run.dir" for each in overrides):
        problems.append(Problem("hydra.run.dir", "give the new folder after the run: psrun reproduce RUN FOLDER"))
    if problems:
        raise ConfigError(problems)
    if not folders:
        return None, overrides
    files.require_on_disk("FOLDER", folders[0])
    return Path(folders[0]), overrides


@dataclass(frozen=True)
class _Record:
    """A run to reproduce.

    Attributes:
      raw: its configuration, resolved.
      ranked_by: the metric of its sweep, if it belongs to one.
    """

    path: Path
    raw: Mapping[str, Any]
    result: Mapping[str, Any]
    ranked_by: str | None

    @classmethod
    def read(cls, path: Path) -> _Record:
        """Raises ConfigError if the folder holds no run that can be reproduced."""
        run_state.existing(path)
        path = path.resolve()
        if os.path.exists(path / SWEEP):
            job = next((each.name for each in sorted(path.iterdir()) if RunFolder(each).has_run), "0")
            raise ConfigError(f"{path} holds a sweep; name one of its jobs, such as {path / job}")
        state = run_state.look(path)
        result = state.result
        problem = state.problem
        if problem or not os.path.exists(path / CONFIG):
            raise ConfigError(f"there is no run in {path}: {problem or f'no {CONFIG}'}; name a run folder")
        mode = result.get("mode")
        outcome = state.outcome
        if mode != "train" or outcome != "completed" or not reproduction.metrics(result):
            what = (
                f"mode={mode}"
                if mode != "train"
                else f"status: {outcome}, metrics: {len(reproduction.metrics(result))}"
            )
            raise ConfigError(f"{path} has no results to compare with ({what}); name a run that has trained to its end")
        missing = [copy for copy in result["code"]["modules"].values() if not (path / copy).is_file()]
        if missing:
            raise ConfigError(f"{path / missing[0]} is missing: the recorded code is not complete; restore the folder")
        raw = recorded_config.read(path / CONFIG)
        sweep, _ = load_mapping(path.parent / SWEEP)
        return cls(path, raw, result, sweep.get("metric"))

    @property
    def places(self) -> list[str]:
        """The folder as it is named in the configuration: where it is, and where it was when the run began."""
        began_in = recorded_config.output_dir(self.path)
        return [str(self.path), *([began_in] if began_in else [])]

    @property
    def code(self) -> Mapping[str, Any]:
        return as_mapping(self.result["code"])

    @property
    def was_resumed(self) -> bool:
        """Whether a process of the run began with a checkpoint."""
        try:
            return any(event.kind == "restored" for event in EventReader(self.path / METRICS).read())
        except OSError:
            return False

    @property
    def environment(self) -> Mapping[str, Any]:
        return as_mapping(self.result["environment"])

    @property
    def data(self) -> Mapping[str, Any]:
        return as_mapping(as_mapping(self.result.get("data")).get("hashes"))

    @property
    def title(self) -> str:
        """What is reproduced, and of which code."""
        commit = self.code.get("commit")
        dirty = f" with changes ({self.path / self.code['diff']})" if self.code.get("diff") else ""
        modules = f"modules of your own: {', '.join(self.code['modules']) or 'none'}"
        text = f"reproduces {self.path}\ncode: {modules}" + (f"; git commit {commit}{dirty}" if commit else "")
        if self.code.get("resumed_with_other_code"):
            text += "\nnote: the run was resumed with other code; the code of its last process is recorded"
        return f"{text}\nnote: {self.code['note']}" if "note" in self.code else text


def _places() -> list[Path]:
    """Where Python finds the user's modules here."""
    return [Path.cwd(), *(Path(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each)]


def _sample(record: _Record, named: Sequence[Path]) -> Sample:
    folders = [run_state.resolve(str(folder)).resolve() for folder in named]
    if not folders and os.path.exists(record.path.parent / SWEEP):
        folders = [record.path.parent]
    if not folders:
        return Sample()
    return reproduction.sample(record.path, folders, named=bool(named))


def _of_data(record: _Record, overrides: Sequence[str]) -> list[Difference]:
    """How the data files differ from the recorded ones; nothing if the command chooses other data."""
    if any(key_of(each).partition(".")[0] in ("data", "model", "experiment") for each in overrides):
        return []
    return reproduction.of_data(record.data, storage.content_hashes_again(record.data))


def _changed(difference: Difference) -> str:
    return (
        f"was {difference.then}, and is {difference.now}: restore the file, name another one with data.path=..., or "
        "add --anyway"
    )


def _fresh(folder: Path | None, record: Path) -> Path:
    """The folder of the new run. Raises ConfigError if it is not empty."""
    if folder is not None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} is not empty; name a new folder: psrun reproduce RUN FOLDER")
        return folder.absolute()
    is_job = os.path.exists(record.parent / SWEEP)
    name = f"{record.parent.name}-{record.name}" if is_job else record.name
    base = Path(_DEFAULT, f"{name}-again").absolute()  # the name of the run, and its end, name one folder
    others = (base.with_name(f"{base.name}-{number}") for number in range(2, 10_000))
    return next(each for each in (base, *others) if not each.exists())


def _prepare(record: _Record, into: Path, arguments: Sequence[str]) -> tuple[list[Difference], RunConfig]:
    """Writes the folder of the new run; returns what the arguments change, and the run.

    Raises:
      ConfigError: an argument is wrong, or the folder cannot be written.
    """
    try:
        into.mkdir(parents=True, exist_ok=True)
        if (record.path / provenance.MODULES).is_dir():
            shutil.copytree(record.path / provenance.MODULES, into / targets.RECORDED)
        provenance.keep_tree(record.code, record.path, into)
        targets.search_modules(into)
        raw = _moved(record.raw, record, into)
        if arguments:
            raw = _composed(arguments, record, into)
        elif os.path.exists(record.path / HYDRA[0]):
            shutil.copytree((record.path / HYDRA[0]).parent, (into / HYDRA[0]).parent)
        run = parse.load(raw)
        write_config(into, raw)
    except OSError as error:
        shutil.rmtree(into, ignore_errors=True)
        raise cannot_be_made(into, error) from error
    except ConfigError:
        shutil.rmtree(into, ignore_errors=True)
        raise
    before = flat(_moved(record.raw, record, into))
    now = flat(raw)
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return [Difference(key, str(before.get(key, "-")), str(now.get(key, "-"))) for key in changed], run


def _composed(arguments: Sequence[str], record: _Record, into: Path) -> dict[str, Any]:
    """The recorded configuration with the groups and keys that the arguments name; also writes the files of Hydra."""
    parse.register_resolvers()
    composed = command_line.compose_resumed(arguments, record.path, into=into)
    with read_write(composed), open_dict(composed):
        composed.hydra.runtime.output_dir = str(into)
    HydraConfig.instance().set_config(composed)
    own = composition.without_hydra(composed)
    write_hydra((into / HYDRA[0]).parent, own, (into / HYDRA[0]).parent.name)
    return _moved(composition.plain(own), record, into)


def _moved(raw: Any, record: _Record, into: Path) -> dict[str, Any]:
    """The configuration of a new run, with paths into its folder where it has paths into the recorded one.

    Without the name of the recorded one, which then still names one run.
    """
    moved: dict[str, Any] = _replaced(raw, record.places, into)
    has_its_name = raw.get("run") == record.raw.get("run")
    return {**moved, "resume": None, **({"run": {"name": None}} if "run" in moved and has_its_name else {})}


def _replaced(node: Any, places: Sequence[str], into: Path) -> Any:
    if isinstance(node, dict):
        return {key: _replaced(value, places, into) for key, value in node.items()}
    if isinstance(node, list):
        return [_replaced(value, places, into) for value in node]
    if isinstance(node, str):
        for place in places:
            if node == place or node.startswith(f"{place}/"):
                return f"{into}{node[len(place) :]}"
    return node


def _run(into: Path) -> int:
    """Runs the prepared run in a new process, which ends with this one; returns its exit code."""
    environment = {**os.environ, process.SWEEP_PID: str(os.getpid())}
    environment.pop(process.SUPERVISOR_PID, None)
    child = subprocess.Popen(process.task_command(into), env=environment)

    def forward(signum: int, frame: Any) -> None:
        if signum != signal.SIGINT:  # the terminal sends Ctrl-C to both processes; others send SIGTERM to this one
            child.send_signal(signum)

    process.on_signals(forward)
    return child.wait()


def _compared(
    record: _Record,
    run: RunConfig,
    result: Mapping[str, Any],
    sample: Sample,
    differences: Sequence[Difference],
) -> Reproduction:
    then = reproduction.metrics(record.result)
    return Reproduction(
        then,
        reproduction.metrics(result),
        steps=_steps(record.result, result),
        sample=sample,
        judged=reproduction.judged_metric(record.ranked_by, then),
        determinism=reproduction.determinism(run, [record.result, result], resumed=record.was_resumed),
        differences=differences,
    )


def _steps(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Any, Any]:
    return as_mapping(then.get("steps")).get("applied"), as_mapping(now.get("steps")).get("applied")
