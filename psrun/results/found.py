"""The runs and sweeps below a folder, and the one that a word on the command line means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from psrun.config import schema
from psrun.errors import ConfigError
from psrun.results import run_name, run_state
from psrun.results.run_state import LEVELS, SWEEP, existing, holds_run, printable

RUNS = Path("runs")  # where runs are without hydra.run.dir
HELP = f"its folder, its name, or the end of its folder's name below {RUNS}/"
_SHOWN = 5  # candidates in a message


def walk(root: str, *, levels: int = LEVELS) -> Iterator[tuple[str, bool]]:
    """The folders of runs and sweeps in and below `root`, and whether each is a sweep; a sweep before its jobs.

    A folder below `root` that cannot be read is taken for a run.
    """
    inner = entries(root)
    names = {entry.name for entry in inner or ()}
    if holds_run(names) or (inner is None and levels < LEVELS):
        yield root, False
        return
    if SWEEP in names:
        yield root, True
    if not levels:
        return
    for entry in inner or ():
        if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path, levels=levels - 1)


def entries(folder: str) -> list[os.DirEntry[str]] | None:
    """What is in a folder; None if it cannot be read, nothing if it was removed."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        return None
    except OSError:
        return []


def resolved(word: str) -> Path:
    """The folder that a word on the command line means: an existing folder, or see `named`.

    Raises:
      ConfigError: there is none, or there are several; names the candidates.
    """
    path = Path(word).expanduser()
    if os.path.exists(path):
        return existing(path)
    folder = named(word)
    if folder is not None:
        return folder
    try:
        return existing(path)
    except ConfigError as error:
        raise ConfigError(f"{error}{_guess(word)}") from error


def named(word: str) -> Path | None:
    """The run or sweep below runs/ that a word means; None if there is none, or if the word is an existing path.

    That is the one with this folder name or this name (`run.name`), else the only one whose folder ends so, else job 3
    of such a sweep for NAME/3. A sweep stands for its jobs of the same name.

    Raises:
      ConfigError: there are several; names them.
    """
    end = word.strip("/")
    if not end or os.path.exists(Path(word).expanduser()):
        return None
    there = [Path(folder) for folder, _ in walk(str(RUNS))]
    matches = _outermost([folder for folder in there if end in (folder.name, run_name.read(folder))])
    matches = matches or _outermost([folder for folder in there if folder.as_posix().endswith(end)])
    if len(matches) > 1:
        shown = ", ".join(map(printable, sorted(matches)[:_SHOWN]))
        more = f" and {len(matches) - _SHOWN} more" if len(matches) > _SHOWN else ""
        raise ConfigError(f"'{word}' is ambiguous: {shown}{more}; name the folder, or more of its end")
    return matches[0] if matches else _inside(end)


def _inside(word: str) -> Path | None:
    """The job of a sweep that NAME/JOB means; None if there is none."""
    name, _, job = word.partition("/")
    sweep = named(name) if job else None
    return sweep / job if sweep is not None and os.path.isdir(sweep / job) else None


def resolved_run(word: str) -> Path:
    """The folder of a run or of a sweep, see `resolved`. Raises ConfigError also for a folder that holds neither."""
    folder = resolved(word)
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror or error}") from error
    if not holds_run(names) and SWEEP not in names:
        raise ConfigError(
            f"{folder} is neither a run nor a sweep; psrun list {folder} shows those below it; name one of these"
        )
    return folder


def shown(folder: Path) -> str:
    """A folder for users: from the current folder if it is below it."""
    try:
        return printable(folder.absolute().relative_to(Path.cwd()))
    except ValueError:
        return printable(folder)


def resume_command(folder: Path) -> str:
    """The command that resumes the run or the sweep in `folder`; empty for a run that does not train."""
    here = Path(shown(folder))
    if os.path.exists(folder / SWEEP):
        return f"psrun -m {run_state.resume_argument(here)}"
    now = run_state.look(here)
    return now.resume_command if now.result.get("mode", "train") == "train" else ""


def _guess(word: str) -> str:
    there = [Path(folder) for folder, _ in walk(str(RUNS))]
    if not there:
        return ""
    known = {printable(folder) for folder in there} | {folder.name for folder in there}
    known |= {name for folder in there if (name := run_name.read(folder)) is not None}
    near = schema.did_you_mean(word, known)
    hint = near if near.startswith(" Did") else f" psrun list shows the runs below {RUNS}/."
    return f", and no run below {RUNS}/ has this name or this end.{hint}"


def _outermost(folders: list[Path]) -> list[Path]:
    """The folders that are not inside another one of them."""
    return [folder for folder in folders if not any(other in folder.parents for other in folders)]
