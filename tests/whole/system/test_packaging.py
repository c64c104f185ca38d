"""The wheel: configuration and experiments travel with it, and it works in a new folder without the checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kubernetes_manifests import manifests
from support import REPOSITORY

ROOT = REPOSITORY

pytestmark = pytest.mark.packaging


def ran(*command: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, env={**os.environ, **env}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_everything_and_runs_in_a_new_folder(tmp_path):
    ran(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob("psrun-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    # A checkout that is installed as editable would lend the installed package what it lacks.
    for folder, *kinds, packed in (
        ("conf", "yaml", "psrun/conf"),
        ("experiments", "yaml", "psrun/conf/experiment"),
        ("psrun", "py", "psrun"),
        ("psrun/runs/report", "html", "css", "js", "psrun/runs/report"),
        ("psrun/cli/project_template", "py", "yaml", "md", "psrun/cli/project_template"),
    ):
        for kind in kinds:
            files = list((ROOT / folder).rglob(f"*.{kind}"))
            assert files, f"{folder} has no file of kind {kind}"
            assert [path for path in files if f"{packed}/{path.relative_to(ROOT / folder)}" not in names] == []

    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    ran(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel), cwd=here)
    env = {"PYTHONPATH": str(site)}
    where = ran(
        sys.executable, "-c", "import psrun, psrun.conf; print(psrun.__file__, psrun.conf.__file__)", cwd=here, **env
    )
    assert where.count(str(site)) == 2
    ran(sys.executable, "-m", "psrun", "experiment=smoke", f"hydra.run.dir={here / 'run'}", cwd=here, **env)
    assert json.loads((here / "run" / "run.json").read_text())["status"] == "completed"


def test_the_lines_of_the_containerfile_make_a_psrun(tmp_path):
    """Its COPY and RUN lines, with folders of this test; no image is built, as none could be pulled to build it on."""
    build, last = (ROOT / "Containerfile").read_text().split("FROM python:")[1:]
    source, installed = tmp_path / "src", tmp_path / "installed"
    source.mkdir()
    for line in build.splitlines():
        word, _, rest = line.partition(" ")
        if word == "COPY":
            *names, to = rest.split()
            for name in names:
                into = source / to if to != "./" else source / name
                if (ROOT / name).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", *(["conf"] if name == "psrun" else []))
                    shutil.copytree(ROOT / name, into, symlinks=True, ignore=ignored)
                else:
                    shutil.copy(ROOT / name, into)
        elif word == "RUN":
            first, *words = shlex.split(rest.replace("/opt/psrun", str(installed)))
            ran(
                sys.executable if first == "python" else first, *words, cwd=source, PIP_NO_DEPS="1", PYTHONPATH=""
            )  # what it needs is installed here already
    (python,) = installed.glob("bin/python")
    needed = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    message = ran(str(python), "-m", "psrun", "--version", cwd=tmp_path, PYTHONPATH=needed)
    assert message.startswith("psrun ")
    where = ran(str(python), "-c", "import psrun; print(psrun.__file__)", cwd=tmp_path, PYTHONPATH=needed)
    assert where.startswith(str(installed))
    entry = json.loads(re.search(r"ENTRYPOINT (.*)", last)[1])
    objects = manifests(tmp_path, "kubernetes.kind=indexed_jobs")
    (job,) = [each for each in objects if each["metadata"]["name"] == "run-1-chief"]
    assert entry == job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert re.search(r"^USER 10001:10001$", last, flags=re.MULTILINE)
