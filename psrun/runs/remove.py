"""`psrun rm RUN...`: removes the folders of runs and sweeps that nothing needs."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from psrun import files
from psrun.errors import ConfigError, ExitCode, PsrunError
from psrun.results import recorded_config, run_folder, run_state
from psrun.results.run_state import SWEEP, holds_run
from psrun.runs.listing import entries
from psrun.runs.listing.entries import Entry, size_bytes
from psrun.runs.states import STARTING
from psrun.runs.sweeps.sweep import Sweep
from psrun.runs.sweeps.sweep_state import SweepReader, is_lost_from_sweep

_REMOVED = ".removed-"  # of a folder that is being removed; hidden from whatever looks for runs
_UNITS = {"min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(min|h|d|w)")
_SHOWN = 20  # folders in a question


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun rm ARGUMENTS`.

    Raises:
      ConfigError: there is no such run, a run is running or needed, or nobody can be asked.
      PsrunError: a folder cannot be removed.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(arguments)
    console = Console(highlight=False)
    chosen = _chosen([_named(word) for word in options.run], options.older_than)
    if options.keep_best:
        chosen = [each for folder in chosen for each in _others(folder)]
    targets, kept = _checked(chosen, whole_sweeps=not options.keep_best, must=options.older_than is None)
    for folder, reason in kept:
        _print(console, f"kept {run_state.shown_path(folder)}: {reason}")
    if not targets:
        _print(console, "nothing to remove")
        return ExitCode.DONE
    total = decimal(sum(target.bytes for target in targets))
    _show(console, targets)
    if options.dry_run:
        _print(console, f"{_many(targets)}, {total} would be freed; nothing is removed (--dry-run)")
        return ExitCode.DONE
    if not options.yes and not _confirmed(console, f"remove {_many(targets)}, {total}?"):
        _print(console, "nothing is removed")
        return ExitCode.DONE
    _remove(targets, from_sweeps=options.keep_best)
    _print(console, f"removed {_many(targets)}, {total} freed")
    return ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun rm", description=__doc__.partition(": ")[2])
    text = f"{run_state.WORD_HELP}; with --older-than also a folder of runs, such as {run_state.RUNS}/"
    parser.add_argument("run", nargs="+", metavar="RUN", help=text)
    text = "only what nothing was written to for so long, such as 30d (min, h, d, w)"
    parser.add_argument("--older-than", type=_age, metavar="AGE", help=text)
    parser.add_argument("--keep-best", action="store_true", help="of a sweep, remove all jobs but the best")
    parser.add_argument("--dry-run", action="store_true", help="show what would be removed; remove nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask; required without a terminal")
    return parser


def _age(text: str) -> float:
    match = _AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a number and min, h, d or w, such as 30d, not '{text}'")
    return float(match[1]) * _UNITS[match[2]]


# -- what to remove


@dataclass(frozen=True)
class _Target:
    """What is removed.

    Attributes:
      folder: of a run or a sweep, or a link to one.
      bytes: freed on the disk; 0 for a link, whose folder stays.
      leads_to: where a link leads; None for a folder.
    """

    folder: Path
    bytes: int
    leads_to: str | None = None

    @classmethod
    def of(cls, folder: Path) -> _Target:
        if folder.is_symlink():
            return cls(folder, 0, os.readlink(folder))
        return cls(folder, size_bytes(str(folder)))


def _named(word: str) -> Path:
    """The folder that a word means, also a link that leads nowhere. Raises ConfigError as `run_state.resolve`."""
    path = Path(word).expanduser()
    return path if _is_dangling(path) else run_state.resolve(word)


def _chosen(folders: Sequence[Path], older_than_s: float | None) -> list[Path]:
    """The runs and sweeps to remove. Raises ConfigError for a folder that is neither."""
    chosen: dict[Path, None] = {}
    for folder in folders:
        if _is_dangling(folder) or _is_sweep(folder) or _is_run(folder):
            chosen[folder.absolute()] = None
        elif older_than_s is None:
            message = f"{folder} is neither a run nor a sweep; name runs, or add --older-than for those below it"
            raise ConfigError(message)
        else:
            below = [Path(path).absolute() for path, _ in run_state.walk(str(folder))]
            jobs = {path for path in below if any(_is_sweep(parent) for parent in path.parents)}
            chosen |= dict.fromkeys(path for path in below if path not in jobs)
    now_s = time.time()
    return [each for each in chosen if older_than_s is None or now_s - _written_s(each) > older_than_s]


def _written_s(folder: Path) -> float:
    """When anything of a run, or of a sweep and its jobs, was last written."""
    if not _is_sweep(folder):
        return run_state.look(folder).written_s or files.changed_s(folder)
    return max([files.changed_s(folder / SWEEP), *map(_written_s, _runs_of_sweep(folder))])


def _others(folder: Path) -> list[Path]:
    """The jobs of a sweep but the best one. Raises ConfigError if it is none, or no job is the best."""
    if not _is_sweep(folder):
        raise ConfigError(f"--keep-best is for sweeps; {run_state.shown_path(folder)} is a single run")
    if reason := _in_use(folder):
        raise ConfigError(f"{run_state.shown_path(folder)} {reason}")
    best = SweepReader(folder).look().best
    if best is None:
        raise ConfigError(
            f"no job of {run_state.shown_path(folder)} is the best: none has a metric; remove the whole sweep"
        )
    return [job for job in _runs_of_sweep(folder) if job != folder / best.folder]


def _runs_of_sweep(folder: Path) -> list[Path]:
    return [Path(path) for path, is_sweep in run_state.walk(str(folder)) if not is_sweep]


def _checked(
    folders: Sequence[Path], *, whole_sweeps: bool, must: bool
) -> tuple[list[_Target], list[tuple[Path, str]]]:
    """What may be removed, and what is kept with the reason.

    Args:
      whole_sweeps: whether jobs of a sweep may be removed only with it.
      must: whether all have to be removed.

    Raises:
      ConfigError: one may not, and `must`; with all reasons.
    """
    targets = []
    kept = []
    references = _References(folders)
    for folder in folders:
        reason = _in_use(folder) or (_of_sweep(folder) if whole_sweeps else "") or references.of(folder)
        if reason:
            kept.append((folder, reason))
        else:
            targets.append(_Target.of(folder))
    if kept and must:
        problems = "\n".join(f"{run_state.shown_path(folder)} {reason}" for folder, reason in kept)
        raise ConfigError(f"nothing is removed:\n{problems}" if len(folders) > 1 else problems)
    return targets, kept


def _in_use(folder: Path) -> str:
    """Why a folder is in use, or cannot be looked into; empty if neither."""
    try:
        run_state.require_readable(folder)
    except ConfigError:
        return "cannot be read by you"
    if _is_sweep(folder):
        state = SweepReader(folder).look()
        running = state.status == "running" or any(job.status in ("running", STARTING) for job in state.jobs)
        return "is running; psrun stop ends it" if running or _is_locked(folder) else ""
    state_of_run = run_state.look(folder)
    if state_of_run.status == run_folder.PENDING:
        return f"waits for {state_of_run.engine.waits_for}; psrun stop cancels it"
    try:
        jobs = state_of_run.jobs()
    except PsrunError as error:
        return f"may have a job: {error}"
    if jobs:
        return f"has {jobs[0].title}, {jobs[0].state}; psrun stop cancels it"
    running = state_of_run.status == "running" and not (state_of_run.gone or is_lost_from_sweep(state_of_run))
    return "is running; psrun stop ends it" if running or _is_locked(folder) else ""


def _is_locked(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # a file system without locks
        return files.is_locked(folder)
    return False


def _of_sweep(folder: Path) -> str:
    """The sweep of which the run in a folder is a job, as a reason; empty if it is none."""
    for above in list(folder.parents)[: run_state.LEVELS]:
        if _is_sweep(above) and folder in map(above.joinpath, _folders_of_jobs(above)):
            return (
                f"is a job of the sweep {run_state.shown_path(above)}; remove the sweep, or its other jobs: --keep-best"
            )
    return ""


def _folders_of_jobs(sweep: Path) -> list[str]:
    record, _ = files.load_mapping(sweep / SWEEP)
    return [job.folder for job in Sweep.from_record(sweep, record).jobs.values()]


class _References:
    """The runs that name another run's folder in their configuration: in `resume`, `evaluation.checkpoint_dir`, ...

    They are sought beside the runs to remove and in runs/. A run that names itself, as a resumed one, is no reference.

    Args:
      removed: folders that are removed together.
    """

    def __init__(self, removed: Sequence[Path]) -> None:
        self._removed = [os.path.realpath(folder) for folder in removed]
        runs = run_state.RUNS.resolve()
        beside = {folder.parent.resolve() for folder in removed}
        roots = {folder for folder in beside if folder != runs and runs not in folder.parents}
        self._named: list[tuple[Entry, str, str]] = []
        for root in (runs, *roots):
            self._named += _texts(entries.below(root).all_runs)

    def of(self, folder: Path) -> str:
        """The run that refers to one in `folder`, as a reason to keep it; empty if there is none."""
        target = os.path.realpath(folder)
        for entry, key, value in self._named:
            if not _is_inside(value, target, entry.path) or self._is_removed(os.path.realpath(entry.path)):
                continue
            return f"is needed by {run_state.shown_path(Path(entry.path))}, whose {key} is {value}"
        return ""

    def _is_removed(self, path: str) -> bool:
        return any(path == removed or path.startswith(removed + os.sep) for removed in self._removed)


def _texts(runs: Sequence[Entry]) -> list[tuple[Entry, str, str]]:
    """Each value of each run that may be the path of another run: the run, the key, and the value."""
    texts = []
    for entry in runs:
        for key, value in entry.everything.items():
            if isinstance(value, str) and key not in ("name", "run.name"):
                texts.append((entry, key, value))
    return texts


def _is_inside(value: str, target: str, run: str) -> bool:
    """Whether a value is a path in the folder `target`, from here or from where the run was started."""
    if os.path.basename(target) not in value:
        return False
    bases = [os.getcwd(), recorded_config.started_in(Path(run)) or os.getcwd()]
    paths = [os.path.realpath(os.path.join(base, os.path.expanduser(value))) for base in bases]
    return any(path == target or path.startswith(target + os.sep) for path in paths)


# -- removal


def _remove(targets: Sequence[_Target], *, from_sweeps: bool) -> None:
    """Renames all folders, so that an interrupted removal leaves no half run, then removes them. Removes links.

    Raises:
      ConfigError: a run has started meanwhile.
      PsrunError: a folder cannot be removed.
    """
    hidden = []
    for target in targets:
        with _held(target.folder):
            away = target.folder.with_name(f"{_REMOVED}{target.folder.name}-{secrets.token_hex(4)}")
            try:
                if target.leads_to is None:
                    target.folder.rename(away)
                    hidden.append(away)
                else:
                    target.folder.unlink()
            except OSError as error:
                reason = error.strerror or error
                raise PsrunError(f"{run_state.shown_path(target.folder)} cannot be removed: {reason}") from error
    if from_sweeps:
        _forget([target.folder for target in targets])
    for parent in {away.parent for away in hidden}:
        for left in parent.glob(f"{_REMOVED}*"):  # also of an earlier removal that was interrupted
            _remove_tree(left)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, which a run takes when it starts. Raises ConfigError if a process has it."""
    descriptor = None
    is_held = True
    with contextlib.suppress(OSError):  # a file system without locks
        descriptor = files.lock(folder)
        is_held = descriptor is not None
    if not is_held:
        raise ConfigError(f"{run_state.shown_path(folder)} has just been started; psrun stop ends it")
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _forget(folders: Sequence[Path]) -> None:
    """Removes jobs from the record of their sweep: a resumed sweep would run them again."""
    for path in dict.fromkeys(parent for folder in folders for parent in folder.parents if _is_sweep(parent)):
        with _held(path):
            sweep = Sweep.read(path)
            sweep.jobs = {number: job for number, job in sweep.jobs.items() if sweep.folder(job) not in folders}
            sweep.write()


def _remove_tree(folder: Path) -> None:
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)
    except FileNotFoundError:  # another process removes it, too
        return
    except OSError as error:
        raise PsrunError(f"{run_state.shown_path(folder)} cannot be removed: {error.strerror or error}") from error


# -- questions and answers


def _confirmed(console: Console, question: str) -> bool:
    """Whether the user agrees. Raises ConfigError if there is nobody to ask."""
    if not (sys.stdin.isatty() and console.is_terminal):
        raise ConfigError(
            "there is no terminal to ask on; add --yes to remove, or --dry-run to see what it would remove"
        )
    return console.input(f"{question} [y/N] ", markup=False).strip().lower() in ("y", "yes")


def _show(console: Console, targets: Sequence[_Target]) -> None:
    for target in targets[:_SHOWN]:
        size = decimal(target.bytes)
        if target.leads_to is not None:
            size = f"a link to {target.leads_to}, which stays"
        _print(console, f"{run_state.shown_path(target.folder)}  {size}")
    if len(targets) > _SHOWN:
        _print(console, f"and {len(targets) - _SHOWN:,} more")


def _many(targets: Sequence[_Target]) -> str:
    links = sum(target.leads_to is not None for target in targets)
    counts = [_counted(len(targets) - links, "folder"), _counted(links, "link")]
    return " and ".join(filter(None, counts))


def _counted(number: int, what: str) -> str:
    if number == 0:
        return ""
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _is_dangling(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _is_sweep(folder: Path) -> bool:
    return os.path.exists(folder / SWEEP)


def _is_run(folder: Path) -> bool:
    try:
        return holds_run(set(os.listdir(folder)))
    except PermissionError:  # which is the reason to keep it
        return True
    except OSError:
        return False
