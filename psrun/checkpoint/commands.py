"""`psrun checkpoint inspect|verify|diff|export|import`: content and health of checkpoints, without a cluster."""

from __future__ import annotations

import argparse
import importlib
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from rich.table import Table

from psrun import process
from psrun.checkpoint.storage import EXPORT_FORMATS, PREFIX, Manifest, Store, described
from psrun.config.groups import run_argument
from psrun.errors import ConfigError, ExitCode
from psrun.files import on_disk
from psrun.results import run_state
from psrun.results.run_folder import ABOUT, CHECKPOINTS, RESULT

_PATH = "a run folder, its checkpoints folder, or a checkpoint, such as runs/RUN/checkpoints/ckpt-500"


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun checkpoint ARGUMENTS`.

    Raises:
      ConfigError: there is no checkpoint at a path, or several runs have its name.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    parser = argparse.ArgumentParser(prog="psrun checkpoint", description=__doc__.partition(": ")[2])
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="inspect|verify|diff|export|import")
    for name, text, function in (
        ("inspect", "list checkpoints, or the variables, shards and bytes of one", _inspect),
        (
            "verify",
            "read each checkpoint completely and compare its checksums; exit code 1 if one is damaged",
            _verify,
        ),
        ("diff", "compare two checkpoints value by value; exit code 1 if they differ", _diff),
        ("export", "write tables, slots and weights for other frameworks, without TensorFlow", _export),
        ("import", "make a run folder of what export wrote, with the values that its files have by now", _import),
    ):
        part = subcommands.add_parser(name, help=text, description=text)
        part.set_defaults(function=function)
        for argument in ("path", "other") if name == "diff" else ("path",):
            about = "the folder that export wrote" if name == "import" else _PATH
            part.add_argument(argument, type=Path, help=about)
        if name == "export":
            part.add_argument("--to", type=on_disk, required=True, metavar="FOLDER", help="a new folder")
            part.add_argument("--format", choices=EXPORT_FORMATS, default=EXPORT_FORMATS[0], help="of the files")
        if name == "import":
            part.add_argument("--to", type=on_disk, required=True, metavar="RUN", help="a new run folder")
    options = vars(parser.parse_args(arguments))
    function = options.pop("function")
    for name in ("path", "other"):
        if name in options and function is not _import:
            options[name] = run_state.find_named(str(options[name])) or options[name]
    del options["subcommand"]
    return function(Console(highlight=False), **options)


def find(path: Path) -> tuple[Store, int | None]:
    """The store of a path, and the step that it names; None if it names a folder.

    Raises:
      ConfigError: there is no checkpoint.
    """
    name = path.name.split(".")[0]
    step = name.removeprefix(f"{PREFIX}-")
    if name != step and step.isdigit() and not path.is_dir():
        store = Store(path.parent)
        if int(step) not in store.steps():
            there = ", ".join(map(str, store.steps())) or "none"
            raise ConfigError(f"there is no complete checkpoint {name} in {path.parent} (there: {there})")
        return store, int(step)
    store = Store(path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path)
    if not store.steps():
        hint = "name a run folder or a checkpoint" if path.exists() else "no such folder"
        raise ConfigError(f"there is no checkpoint in {store.folder}: {hint}")
    return store, None


def _inspect(console: Console, path: Path) -> ExitCode:
    store, step = find(path)
    if step is None:
        console.print(_overview(store, {each: store.damage(each, thorough=False) for each in store.steps()}))
        console.print("health by file sizes; `psrun checkpoint verify` reads everything", style="dim")
        return ExitCode.DONE
    try:
        manifest = store.manifest(step)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{store.prefix(step)} has a damaged manifest: {error}") from error
    _details(console, store, manifest)
    return ExitCode.DONE


def _verify(console: Console, path: Path) -> ExitCode:
    store, only = find(path)
    steps = store.steps() if only is None else [only]
    damages = {
        step: store.damage(step)
        for step in track(steps, "verifying", console=console, transient=True, disable=not console.is_terminal)
    }
    remaining = store.steps()  # a running run removes checkpoints
    damages = {step: damage for step, damage in damages.items() if step in remaining}
    console.print(_overview(store, damages))
    return ExitCode.FAILED if any(damages.values()) else ExitCode.DONE


def _diff(console: Console, path: Path, other: Path) -> ExitCode:
    stores = [find(each) for each in (path, other)]
    prefixes = []
    for store, step in stores:
        chosen_step = store.steps()[0] if step is None else step
        damage = store.damage(chosen_step)
        if damage:
            raise ConfigError(f"{store.prefix(chosen_step)} is damaged: {damage}")
        prefixes.append(store.prefix(chosen_step))
    with process.silent_stderr():  # hides TensorFlow's messages about this machine
        checkpoints = importlib.import_module("psrun.checkpoint.checkpoints")  # only this command needs TensorFlow
        rows = checkpoints.compare(*prefixes)
    table = _table(f"{prefixes[0]} and {prefixes[1]}", "variable", "", "difference")
    for row in rows:
        if not row.equal:
            table.add_row(row.name, row.shape, row.differs)
    same = sum(row.equal for row in rows)
    if same < len(rows):
        console.print(table)
    console.print(f"{same} of {len(rows)} variables are bitwise equal")
    return ExitCode.DONE if same == len(rows) else ExitCode.FAILED


def _export(console: Console, path: Path, to: Path, format: str) -> ExitCode:
    exchange = importlib.import_module("psrun.checkpoint.exchange")  # only this command needs pyarrow
    store, step = find(path)
    about = exchange.export(store, store.steps()[0] if step is None else step, to, format)
    tables = ", ".join(about["tables"]) or "none"
    console.print(f"{to}: {ABOUT}, tables: {tables}, of step {about['step']}", soft_wrap=True)
    if any(table["row_order"] == "unknown" for table in about["tables"].values()):
        message = "it is unknown which ids the rows of some tables belong to: row_order is unknown there"
        console.print("[yellow]warning:[/yellow]", message, soft_wrap=True)
    return ExitCode.DONE


def _import(console: Console, path: Path, to: Path) -> ExitCode:
    with process.silent_stderr():
        importing = importlib.import_module("psrun.checkpoint.importing")  # only this command and diff need TensorFlow
        manifest = importing.restore(path, to)
    run = run_argument(to)
    hint = f"; psrun resume {run} goes on from it" if (to / RESULT).exists() else ""
    console.print(f"{to} has the checkpoint of step {manifest.step}{hint}", soft_wrap=True)
    return ExitCode.DONE


def _overview(store: Store, damages: dict[int, str | None]) -> Table:
    """One row per checkpoint, the newest first."""
    table = _table(str(store.folder), "step", "", "saved", "epochs", "+ steps", "bytes", "files", "health")
    best = store.best() or {}
    for step, damage in damages.items():
        marks = ["latest"] if step == store.steps()[0] else []
        marks += [f"best {best['metric']} {best['value']:.4g}"] if step == best.get("step") else []
        health = f"[red]damaged[/red]: {damage}" if damage else "[green]good[/green]"
        try:
            manifest = store.manifest(step)
        except (OSError, ValueError):
            table.add_row(str(step), ", ".join(marks), "", "", "", "", "", health)
            continue
        position = manifest.position
        table.add_row(
            *(str(step), ", ".join(marks), _when(manifest), str(position.epochs), str(position.steps)),
            *(decimal(manifest.num_bytes), str(len(manifest.files)), health),
        )
    return table


def _details(console: Console, store: Store, manifest: Manifest) -> None:
    contents = manifest.contents
    position = manifest.position
    console.print(
        f"[bold]{store.prefix(manifest.step)}[/bold]  step {manifest.step}, {position.epochs} epochs and "
        f"{position.steps} steps, saved {_when(manifest)} by psrun {manifest.psrun}, {contents.optimizers}, "
        f"configuration {manifest.config_sha256[:12]}",
        soft_wrap=True,
    )
    table = _table("Variables", "variable", "", "shape and dtype", "shards on", "bytes")
    shards: dict[str, list[dict]] = {}
    for shard in contents.shards:
        shards.setdefault(shard["variable"], []).append(shard)
    for kind, variables in (("model", contents.model), ("optimizer", contents.slots)):
        for name, variable in variables.items():
            lies = shards.get(name, [])
            table.add_row(
                *(name, kind, described(variable), " ".join(shard["task"] for shard in lies)),
                decimal(sum(shard["bytes"] for shard in lies)),
                style=None if kind == "model" else "dim",
            )
    console.print(table)
    files = _table("Files", "file", "bytes", "SHA-256")
    for name, file in manifest.files.items():
        files.add_row(name, f"{file['bytes']:,}", file["sha256"][:16])
    console.print(files)
    damage = store.damage(manifest.step, thorough=False)
    console.print(f"[red]damaged[/red]: {damage}" if damage else "file sizes match the manifest", soft_wrap=True)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        right = heading in ("step", "epochs", "+ steps", "bytes", "files")
        table.add_column(
            heading,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right or heading == "saved",
            min_width=len("damaged") if heading == "health" else None,
        )
    return table


def _when(manifest: Manifest) -> str:
    """In the local time zone."""
    return datetime.fromisoformat(manifest.saved_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
