"""A command of another package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from psrun.errors import ExitCode


def main(arguments: Sequence[str]) -> ExitCode:
    parser = argparse.ArgumentParser(prog="psrun greet", description="Greets somebody.")
    parser.add_argument("name")
    parser.add_argument("--loudly", action="store_true")
    given = parser.parse_args(arguments)
    end = "!" if given.loudly else "."
    sys.stdout.write(f"Hello {given.name}{end}\n")
    return ExitCode.DONE
