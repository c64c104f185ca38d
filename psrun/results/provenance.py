"""What a run depends on beside its configuration: the code of its user, the installed packages, and the machine."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

import psrun
from psrun.config import topology

CODE = "code"  # below the run folder
MODULES = f"{CODE}/modules"
DIFF = f"{CODE}/dirty.diff"
_REPRODUCED = f"{CODE}/reproduced.json"  # in a reproduction: `code` of the run that it reproduces
_NOT_COPIED = "not copied: "
_GIT_WITHIN_S = 5.0
_MOST_DIFF_BYTES = 2**20
_MOST_MODULE_BYTES = 2**24  # of all modules
# Configured programs that `git diff` would start are not started.
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.quotepath=false")
_INSTALLED = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info")
_NOT_MODULES = ("__main__", "__mp_main__", "__autograph_generated_file", "psrun.")  # a script, TensorFlow's, and ours
_DRIVER = Path("/proc/driver/nvidia/gpus")


# -- git


@dataclass(frozen=True)
class WorkTree:
    """The state of the repository around a folder.

    Attributes:
      commit, branch: None without a repository or a commit, and if git cannot say; the branch also if HEAD is detached.
      dirty: whether tracked files differ from the commit; None if that is unknown.
      diff: how they differ; empty if they do not.
      note: what is missing and why, in one line; else empty.
    """

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = False
    diff: bytes = b""
    note: str = ""


def keep_tree(code: Mapping[str, Any], source: Path, into: Path) -> None:
    """Keeps the state of the repository of a run for its reproduction, which runs its code. Raises OSError.

    Args:
      code: as run.json in the folder `source` has it.
      into: the folder of the reproduction.
    """
    notes = [note for note in str(code.get("note", "")).split("; ") if not note.startswith(_NOT_COPIED)]
    kept = {name: code.get(name) for name in ("commit", "branch", "dirty")} | {"note": "; ".join(notes)}
    (into / CODE).mkdir(exist_ok=True)
    (into / _REPRODUCED).write_text(json.dumps(kept), encoding="utf-8")
    if code.get("diff"):
        shutil.copyfile(source / DIFF, into / DIFF)


def kept_tree(folder: Path) -> WorkTree | None:
    """The state that `keep_tree` kept in a run folder; None if the run is no reproduction."""
    try:
        kept = json.loads((folder / _REPRODUCED).read_text(encoding="utf-8"))
    except OSError:
        return None
    diff = b""
    with contextlib.suppress(FileNotFoundError):
        diff = (folder / DIFF).read_bytes()
    return WorkTree(**kept, diff=diff)


def not_copied(names: Sequence[str]) -> str:
    """The note about modules that could not be copied; empty without one."""
    return f"{_NOT_COPIED}{', '.join(names)}" if names else ""


def work_tree(folder: Path, *, within_s: float = _GIT_WITHIN_S, most_bytes: int = _MOST_DIFF_BYTES) -> WorkTree:
    """The state of the repository around `folder`. Raises nothing: a run does not need a repository.

    Args:
      within_s: how long one command of git may take.
      most_bytes: a longer diff is cut.
    """
    if shutil.which("git") is None:
        return WorkTree(note="there is no git here")
    head = _git(folder, ["rev-parse", "HEAD", "--abbrev-ref", "HEAD"], within_s, 1024)
    if head.problem:
        if "not a git repository" in head.problem:
            return WorkTree()
        return WorkTree(note=f"git: {head.problem}", dirty=None)
    commit, branch = head.out.decode().split()
    at = WorkTree(commit, None if branch == "HEAD" else branch)
    diff = _git(folder, ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD"], within_s, most_bytes)
    if diff.problem:
        return replace(at, dirty=None, note=f"git: {diff.problem}")
    note = f"the diff is cut at {most_bytes:,} bytes" if diff.is_cut else ""
    return replace(at, dirty=bool(diff.out), diff=diff.out, note=note)


@dataclass(frozen=True)
class _Output:
    out: bytes = b""
    is_cut: bool = False
    problem: str = ""


def _git(folder: Path, arguments: list[str], within_s: float, most_bytes: int) -> _Output:
    """The output of a command of git, without an index that it would write."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    late = threading.Event()
    with tempfile.TemporaryFile() as errors:
        try:
            command = ["git", "-C", str(folder), *_SAFE, *arguments]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        except OSError as error:
            return _Output(problem=error.strerror or str(error))

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(within_s, give_up)
        timer.daemon = True  # a process that ends does not wait for git
        timer.start()
        with process:
            assert process.stdout is not None
            out = process.stdout.read(most_bytes + 1)
            is_cut = len(out) > most_bytes
            if is_cut:
                process.kill()
        timer.cancel()
        timer.join()
        if late.is_set():
            return _Output(problem=f"{arguments[0]} took more than {within_s:g} s")
        if process.returncode and not is_cut:
            errors.seek(0)
            message = errors.read(1024).decode(errors="replace").strip().partition("\n")[0]
            return _Output(
                problem=message.removeprefix("fatal: ") or f"{arguments[0]} exited with {process.returncode}"
            )
    return _Output(out[:most_bytes], is_cut)


# -- modules of the user


def user_modules() -> dict[str, Path]:
    """The imported modules that belong neither to Python, nor to an installed package, nor to psrun: name to file."""
    installed = _installed_folders()
    found = {}
    # A list of the items is built in Python's allocator, which may run code that imports: a copy is not.
    for name, module in sys.modules.copy().items():
        file = _file_of(module)
        if file is None or not file.endswith(".py") or name.startswith(_NOT_MODULES):
            continue
        if "/site-packages/" in file or "/dist-packages/" in file or file.startswith(installed):
            continue
        if all(part.isidentifier() for part in name.split(".")):
            found[name] = Path(file)
    return found


def _file_of(module: Any) -> str | None:
    """`__file__`, without starting the import of a module that is imported on demand."""
    try:
        file = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None
    return file if isinstance(file, str) else None


def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    folders |= {str(Path(psrun.__file__).parent)}
    return tuple(f"{spelling}/" for each in folders for spelling in {each, os.path.realpath(each)})


def copy_of(name: str, file: Path) -> Path:
    """The path of the copy of a module below a run folder: a folder with these is a place on Python's path."""
    path = Path(MODULES, *name.split("."))
    return path / "__init__.py" if file.name == "__init__.py" else path.with_name(f"{path.name}.py")


def copy_modules(folder: Path, modules: Mapping[str, Path]) -> tuple[dict[str, str], list[str]]:
    """Copies modules into the run folder.

    Returns:
      The paths of the copies, relative to `folder`, by name; and the names of those that are not copied: too large in
      all, or unreadable.
    """
    copies: dict[str, str] = {}
    missing: list[str] = []
    room = _MOST_MODULE_BYTES
    for name, file in sorted(modules.items()):
        copy = copy_of(name, file)
        try:
            source = file.read_bytes()
            if len(source) > room:
                missing.append(name)
                continue
            (folder / copy).parent.mkdir(parents=True, exist_ok=True)
            (folder / copy).write_bytes(source)
        except OSError:
            missing.append(name)
            continue
        room -= len(source)
        copies[name] = str(copy)
    return copies, missing


# -- packages and machine


def environment() -> dict[str, Any]:
    """The key `environment` of run.json, for this process."""
    return {"python": platform.python_version(), "packages": packages(), "hardware": hardware()}


def packages() -> dict[str, str]:
    """The versions of all installed packages, by normalized name.

    They are in the names of folders (`NAME-VERSION.dist-info`); importlib.metadata would read a file of each, 70 ms for
    200 packages.
    """
    found: dict[str, str] = {}
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            if match := _INSTALLED.fullmatch(name):
                # As in Python's own search, the first on the path counts.
                found.setdefault(normalized(match["name"]), match["version"])
    return dict(sorted(found.items()))


def normalized(package: str) -> str:
    """The name of a package as pip compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def hardware() -> dict[str, Any]:
    """The machine, as far as this process may use it."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
    }


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """The models of the GPUs of this machine, by the driver: tasks of one cluster see different ones."""
    models = []
    for file in sorted(_DRIVER.glob("*/information")):
        try:
            model = re.search(r"^Model:\s*(.+)$", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        except OSError:
            continue
        models.append(model[1].strip() if model else "NVIDIA GPU")
    return models or ["NVIDIA GPU"] * len(topology.gpus_here({}))
