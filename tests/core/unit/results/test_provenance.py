"""What a run depends on beside its configuration: repositories in every state, modules of the user, packages."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from psrun.results import provenance
from psrun.results.provenance import WorkTree
from psrun.tf_internals import modules


@pytest.fixture
def repository(tmp_path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    return folder


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def commit(folder: Path) -> None:
    (folder / "a.py").write_text("a = 1\n")
    git(folder, "add", "a.py")
    git(folder, "commit", "-q", "-m", "first")


def test_a_folder_without_a_repository_and_one_without_a_commit(tmp_path, repository):
    assert provenance.work_tree(tmp_path) == WorkTree()
    tree = provenance.work_tree(repository)
    assert (tree.commit, tree.branch, tree.dirty) == (None, None, None)
    assert tree.note


def test_the_diff_has_what_is_staged_and_what_is_not_and_is_cut(repository):
    commit(repository)
    clean = provenance.work_tree(repository)
    assert (len(clean.commit), clean.branch, clean.dirty, clean.diff, clean.note) == (40, "trunk", False, b"", "")
    (repository / "a.py").write_text("a = 2\n")
    (repository / "b.py").write_text("b = 1\n" * 1000)
    git(repository, "add", "b.py")
    (repository / "untracked.py").write_text("c = 1\n")
    dirty = provenance.work_tree(repository)
    assert (dirty.commit, dirty.dirty) == (clean.commit, True)
    assert [each in dirty.diff for each in (b"+a = 2", b"+b = 1", b"+c = 1")] == [True, True, False]
    cut = provenance.work_tree(repository, most_bytes=100)
    assert (cut.diff, cut.dirty) == (dirty.diff[:100], True)
    assert cut.note
    git(repository, "checkout", "-q", "--detach")
    assert (provenance.work_tree(repository).commit, provenance.work_tree(repository).branch) == (clean.commit, None)


def test_a_program_that_the_repository_configures_is_not_started(repository):
    commit(repository)
    (repository / "a.py").write_text("a = 2\n")
    program = repository / "program"
    program.write_text("#!/bin/sh\ntouch started\n")
    program.chmod(0o755)
    for key in ("diff.external", "core.fsmonitor"):
        git(repository, "config", key, str(program))
    assert b"+a = 2" in provenance.work_tree(repository).diff
    assert not (repository / "started").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_the_repository_of_another_user_is_left_alone(repository):
    commit(repository)
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 12345, 12345)
    tree = provenance.work_tree(repository)
    assert (tree.commit, tree.dirty) == (None, None)
    assert "ownership" in tree.note


def test_git_that_hangs_or_is_not_there_is_a_note(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "more than 0.1 s" in provenance.work_tree(tmp_path, within_s=0.1).note
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert provenance.work_tree(tmp_path).commit is None
    assert provenance.work_tree(tmp_path).note


def test_modules_of_the_user_are_copied_as_a_place_on_the_path(tmp_path, monkeypatch):
    package = tmp_path / "here" / "own_package" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "part.py").write_text("VALUE = 1\n")  # in a package without __init__.py
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    importlib.import_module("own_package.inner.part")
    found = provenance.user_modules()
    own = {name: file for name, file in found.items() if name.startswith("own_package")}
    assert own == {"own_package": package.parent / "__init__.py", "own_package.inner.part": package / "part.py"}
    assert not {"numpy", "pytest", "json", "psrun.results.provenance", "__main__"} & found.keys()
    copies, missing = provenance.copy_modules(tmp_path / "run", {**own, "gone": tmp_path / "gone.py"})
    assert missing == ["gone"]
    assert set(copies) == set(own)
    code = "import own_package.inner.part as part; print(part.__file__)"
    place = tmp_path / "run" / provenance.MODULES
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(told.stdout.strip()) == tmp_path / "run" / copies["own_package.inner.part"]


@pytest.mark.parametrize("read", [provenance.user_modules, modules.remove_generated_files])
def test_an_import_while_modules_are_read_is_no_error(read, monkeypatch):
    """Python 3.11 collects garbage while it makes a list of items, and what is collected may import."""
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    imported = []

    def import_one_more(phase: str, info: dict) -> None:
        name = f"imported_meanwhile_{len(imported)}"
        imported.append(name)
        sys.modules[name] = types.ModuleType(name)

    threshold = gc.get_threshold()
    gc.callbacks.append(import_one_more)
    gc.set_threshold(1)
    try:
        read()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(import_one_more)
    assert imported


def test_packages_are_those_that_python_knows():
    known = {re.sub(r"[-_.]+", "-", each.name).lower(): each.version for each in importlib.metadata.distributions()}
    found = provenance.packages()
    assert found.keys() == known.keys()
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert provenance.hardware()["cpu"]
