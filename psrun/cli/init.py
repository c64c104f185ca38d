"""`psrun init`: creates a small project with data, a model, an experiment and a test."""

from __future__ import annotations

import argparse
import shlex
import shutil
from pathlib import Path

from rich.console import Console

from psrun import files
from psrun.errors import ConfigError, ExitCode

_TEMPLATE = Path(__file__).parent / "project_template"


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun init ARGUMENTS`.

    Raises:
      ConfigError: the folder is not empty or cannot be written.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    parser = argparse.ArgumentParser(prog="psrun init", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("folder", type=files.on_disk, help="new folder of the project; read its README.md first")
    folder: Path = parser.parse_args(arguments).folder.expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder; choose another folder")
    try:
        shutil.copytree(_TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    except OSError as error:  # copytree collects the errors of single files
        raise ConfigError(f"{folder} cannot be written to: {error.strerror or error}") from error
    console = Console(highlight=False, markup=False)
    console.print(
        f"created {folder} with data, a model, an experiment and a test; see {folder / 'README.md'}", soft_wrap=True
    )
    console.print(f"  cd {shlex.quote(str(folder))}\n  psrun train --config-dir conf experiment=first", soft_wrap=True)
    return ExitCode.DONE
