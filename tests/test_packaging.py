"""The wheel: configuration and experiments travel with it, and it works in a new folder without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.packaging


def ran(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}, check=False
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
    for path in [*ROOT.glob("conf/*/*.yaml"), ROOT / "conf" / "config.yaml"]:
        assert f"psrun/{path.relative_to(ROOT)}" in names
    # A checkout that is installed as editable would lend the installed package what it lacks.
    for path in ROOT.glob("psrun/**/*.py"):
        assert str(path.relative_to(ROOT)) in names
    for path in [each for kind in ("html", "css", "js") for each in ROOT.glob(f"psrun/reports/*.{kind}")]:
        assert str(path.relative_to(ROOT)) in names
    for path in ROOT.glob("experiments/*.yaml"):
        assert f"psrun/conf/experiment/{path.name}" in names

    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    ran(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel), cwd=here)
    found = {"PYTHONPATH": str(site)}
    where = ran(
        sys.executable, "-c", "import psrun, psrun.conf; print(psrun.__file__, psrun.conf.__file__)", cwd=here, **found
    )
    assert where.count(str(site)) == 2
    ran(sys.executable, "-m", "psrun", "experiment=smoke", f"hydra.run.dir={here / 'run'}", cwd=here, **found)
    assert json.loads((here / "run" / "run.json").read_text())["status"] == "completed"
