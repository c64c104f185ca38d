"""`psrun init`: a small project of its own, with data, a model, an experiment and a test, to begin with."""

from __future__ import annotations

import argparse
import shlex
import shutil
from pathlib import Path

from rich.console import Console

from psrun.errors import ConfigError, ExitCode

_TEMPLATE = Path(__file__).parent / "project_template"


def main(arguments: list[str]) -> ExitCode:
    """Does what `psrun init ARGUMENTS` asks for.

    Raises:
      ConfigError: there is something at the folder already, or it cannot be written.
      SystemExit: as argparse ends: help, or arguments that it does not know.
    """
    parser = argparse.ArgumentParser(prog="psrun init", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("folder", type=Path, help="a new one; its README.md says how to go on")
    folder: Path = parser.parse_args(arguments).folder.expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder: name a new one")
    try:
        shutil.copytree(_TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    except OSError as error:  # copytree collects those of single files
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error
    console = Console(highlight=False, markup=False)
    console.print(
        f"{folder} has data, a model, an experiment and a test; {folder / 'README.md'} says more", soft_wrap=True
    )
    console.print(f"  cd {shlex.quote(str(folder))}\n  psrun --config-dir conf experiment=first", soft_wrap=True)
    return ExitCode.DONE
