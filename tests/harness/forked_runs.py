"""Runs of psrun, each in a process that is forked from this one, which has imported TensorFlow once.

Reads a list of [folder, variables, arguments] as JSON from standard input. The output of each run goes to `output` in
its folder; writes the list of exit codes, as of `os.waitstatus_to_exitcode`, to standard output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from psrun import process
from psrun.cli import command_line

process.prepare()
from psrun.roles import table  # noqa: E402

for role in ("chief", "checkpoint_modes"):
    table.import_role(role)


def run(folder: str, variables: dict[str, str], arguments: list[str]) -> int:
    child = os.fork()
    if child == 0:
        output = os.open(Path(folder, "output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        os.environ.update(variables)
        tempfile.tempdir = None
        sys.argv[1:] = arguments
        command_line.run()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


json.dump([run(*each) for each in json.load(sys.stdin)], sys.stdout)
