"""The output of help and of completion with TAB."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from psrun.cli import command_line
from psrun.errors import ExitCode
from psrun.runs import completion

pytestmark = pytest.mark.command

LINES, COLUMNS = 24, 80


def test_every_help_fits_on_a_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    for word in command_line.command_words():
        command = command_line.find_command(word)
        whole = completion.help_of(command)
        for part in ((), *((name,) for name in completion.parts_of(whole))):
            lines = completion.help_of(command, *part).splitlines()
            assert 5 <= len(lines) <= LINES, (word, *part)
            assert max(map(len, lines)) <= COLUMNS, (word, *part)


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("psrun che", ["checkpoint", "checkpoint.", "checkpoint="]),
        ("psrun -m cluster=local cluster.num_p", ["cluster.num_ps="]),
        ("psrun checkpoint ", ["inspect", "verify", "diff", "export", "import"]),
        ("psrun checkpoint verify ru", ["runs/"]),
        ("psrun submit kubernetes kubernetes.im", ["kubernetes.image="]),
        ("psrun submit slurm --no", ["--no-follow"]),
        ("psrun report --c", ["--columns", "--csv"]),
        ("psrun data inspect --w", ["--weight", "--write"]),
        ("psrun resume=ru", ["resume=runs/"]),
        ("psrun pre", ["predict", "predict."]),
        ("psrun help rep", ["report", "reproduce"]),
        ("psrun resume runs/m", ["runs/model/"]),
        ("psrun predict runs/model predict.pa", ["predict.path="]),
        ("psrun predict --config-dir ru", ["runs/"]),
        ("psrun train model=den", ["model=dense"]),
        ("psrun train --multi", ["--multirun"]),
        ("psrun --config-dir runs model=mi", ["model=mine"]),
        ("psrun --multi", ["--multirun"]),
        ("psrun partitioner=m", ["partitioner=max_size", "partitioner=min_size"]),
        ("psrun model=nonsense trainer=f", ["trainer=fit"]),
        ("psrun 'trainer.callbacks=[{", []),
        ("psrun seed.nonsense", []),
    ],
)
def test_completion_prints_only_the_answers(monkeypatch, capfd, tmp_path, line, answers):
    (tmp_path / "runs" / "model").mkdir(parents=True)
    (tmp_path / "runs" / "model" / "mine.yaml").write_text("_target_: mine.line\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["psrun", "-sc", "query=bash"])
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    assert completion.main(["query=bash"]) == ExitCode.DONE
    output = capfd.readouterr()
    assert (output.out.split(), output.err) == (answers, "")


SHELLS = {
    "bash": (["--norc", "--noprofile"], "PS1='> '", 'eval "$(psrun -sc install=bash)"'),
    "zsh": (
        ["-f"],
        "PS1='> '",
        'autoload -U compinit bashcompinit; compinit -D; bashcompinit; eval "$(psrun -sc install=bash)"',
    ),
    "fish": (["--no-config"], "function fish_prompt; echo '> '; end", "psrun -sc install=fish | source"),
}


@pytest.fixture(params=SHELLS)
def shell(request, tmp_path):
    """A shell with the line that docs/guides/configuration.md gives, in a folder with a psrun that is this one."""
    pexpect = pytest.importorskip("pexpect")
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"there is no {request.param}")
    script = tmp_path / "bin" / "psrun"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom psrun.cli.main import main\nmain()\n")
    script.chmod(0o755)
    (tmp_path / "runs").mkdir()
    options, prompt, install = SHELLS[request.param]
    kept = {
        "HOME": str(tmp_path),
        "TERM": "dumb" if request.param != "fish" else "xterm",
        "PATH": f"{script.parent}:{os.environ['PATH']}",
    }
    inherited = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LANG"))}
    child = pexpect.spawn(
        program, options, cwd=tmp_path, env={**inherited, **kept}, encoding="utf-8", timeout=30, dimensions=(24, 200)
    )
    child.sendline(prompt)
    child.sendline(f"{install}; echo read''y")
    child.expect("ready")
    yield child
    child.close(force=True)


def test_tab_completes_choices_commands_and_paths(shell):
    for typed, completed in (("psrun cluster=inp", "rocess"), ("psrun repo", "rt"), ("psrun report ru", "ns/")):
        shell.send(typed)
        shell.expect_exact(typed)
        shell.send("\t")
        shell.expect_exact(completed)
        shell.send("\x15")  # Ctrl-U clears the line
