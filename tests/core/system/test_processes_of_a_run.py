"""How psrun starts its processes: what the current folder holds, and how Python runs, do not break them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import environment

from psrun import process

pytestmark = pytest.mark.command


def test_files_of_the_current_folder_do_not_replace_modules_that_psrun_imports(tmp_path):
    """A task ends with the error of its configuration, which names a module of the user's that is not replaced."""
    (tmp_path / "psrun").mkdir()  # as beside a clone that is installed in place
    for module in ("random", "yaml", "typing", "tensorflow"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "mine.py").write_text("def model(source): ...\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed: 4294967296\nmodel: {_target_: mine.modle}\n")
    command = process.task_command(tmp_path / "run")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "seed: is 4294967296, must be at most 4294967295" in done.stderr
    assert f"model._target_: there is no 'modle' in {tmp_path}/mine.py. Did you mean 'model'?" in done.stderr


def test_python_without_docstrings_is_refused():
    command = [sys.executable, "-m", "psrun", "cluster=none"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment(PYTHONOPTIMIZE="2")
    )
    assert done.returncode == 2
    assert done.stderr.startswith("psrun: PYTHONOPTIMIZE: is 2")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("signum", "module", "code", "said"),
    [
        ("SIGINT", "hydra", -2, ""),
        ("SIGTERM", "hydra", 175, "psrun: interrupted by SIGTERM\n"),  # while psrun's modules are imported
        ("SIGHUP", "antlr4.LL1Analyzer", 175, "psrun: interrupted by SIGHUP\n"),  # which composing needs
    ],
)
def test_a_signal_before_the_run_begins_ends_psrun_without_a_traceback(tmp_path, signum, module, code, said):
    """It arrives when a module is imported."""
    script = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == '{module}':\n"
        f"            os.kill(os.getpid(), signal.{signum})\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from psrun.cli.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "mode=plan"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)
    assert not list(tmp_path.iterdir())


def test_a_process_has_no_threads_when_it_is_isolated(tmp_path):
    """For users other than root, Linux isolates only a process with one thread."""
    code = (
        "import os, sys\n"
        "from psrun import process\n"
        "process.isolate = lambda: f'{len(os.listdir(\"/proc/self/task\"))} threads'\n"
        "from psrun.cli.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "cluster=inprocess", "cluster.isolate=true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "cluster.isolate=true is not possible here: 1 threads" in done.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [("--cfg job | true", 1), ("--help >&- 2>&-", 0), ("--version >&-", 0), ("nonsense 2>&-", 2)],
)
def test_a_command_with_a_closed_stream_ends_without_a_traceback(tmp_path, line, code):
    command = ["bash", "-c", f"{sys.executable} -m psrun {line}; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, "")
