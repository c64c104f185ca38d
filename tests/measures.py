"""Measures of the code itself: `python tests/measures.py [CHECKOUT]`.

Lines, and lines by folder; modules of the core and of each part; imports that cross a wall; modules that exactly one
other module imports; lines of more than 100 characters; the annotation `Any` per 1,000 statements; radon's mean
complexity, where radon is installed; attributes of others' objects that psrun replaces at run time; modules that a
plain run imports.
"""

# ruff: noqa: T201

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

# A run ends its process without Python's exit handlers: each import is written down as it happens.
_RUN = """
import sys
names = open(sys.argv.pop(1), "w", buffering=1)
sys.addaudithook(lambda event, arguments: event == "import" and print(arguments[0], file=names))
from psrun.cli.main import main
main()
"""
_LONG = 100
_ALLOWED = {("runs", "engines"), ("recsys", "tables")}  # beside the core, which every part may import
_OWN = ("self", "cls", "parser", "args")


def main(checkout: Path) -> None:
    files = sorted(file for file in (checkout / "psrun").rglob("*.py") if "project_template" not in file.parts)
    trees = {_name(file, checkout): ast.parse(file.read_text(encoding="utf-8")) for file in files}
    lines = {_name(file, checkout): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    statements = sum(isinstance(node, ast.stmt) for tree in trees.values() for node in ast.walk(tree))
    per_thousand = 1000 / statements
    print(f"lines {sum(lines.values())} in {len(files)} modules, {statements} statements")
    folders: Counter[str] = Counter()
    for name, count in lines.items():
        folders[name.split(".")[1] if name.count(".") > 1 else "psrun"] += count
    print("  " + ", ".join(f"{folder} {count}" for folder, count in sorted(folders.items())))
    parts = [file.parent.name for file in (checkout / "psrun").glob("*/part.py")]
    modules = Counter(_part(name, parts) for name in trees)
    print("modules of " + ", ".join(f"{part} {count}" for part, count in sorted(modules.items())))
    crossing = [each for name, tree in trees.items() for each in _crossing(name, tree, trees, parts)]
    print(f"imports that cross a wall {len(crossing)}")
    print("".join(f"  {each}\n" for each in crossing), end="")
    alone = _imported_once(trees)
    print(f"modules with one importer {len(alone)}, {sum(lines[name] for name in alone)} lines")
    long = sum(len(line) > _LONG for file in files for line in file.read_text(encoding="utf-8").splitlines())
    print(f"lines of more than {_LONG} characters {100 * long / sum(lines.values()):.1f} %")
    print(f"radon's mean complexity {_complexity(files)}")
    print(f"`Any` per 1,000 statements {per_thousand * sum(map(_any, trees.values())):.1f}")
    replaced = [f"{name}: {what}" for name, tree in trees.items() for what in _replaced(tree)]
    print(f"attributes of others' objects replaced at run time {len(replaced)}")
    print("\n".join(f"  {each}" for each in replaced))
    print(f"modules of psrun that a plain run imports {_imported_by_run(checkout)}")


def _name(file: Path, checkout: Path) -> str:
    return ".".join(file.relative_to(checkout).with_suffix("").parts).removesuffix(".__init__")


def _imported_once(trees: dict[str, ast.Module]) -> list[str]:
    """The modules, packages aside, that exactly one other module imports."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found = {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = {node.value.partition(":")[0]}  # imported by name, when it is needed
            else:
                continue
            for other in found & trees.keys():
                importers[other].add(name)
    packages = {name.rpartition(".")[0] for name in trees}
    return [name for name in trees if name not in packages and len(importers[name] - {name}) == 1]


def _part(name: str, parts: list[str]) -> str:
    folder = name.partition(".")[2].partition(".")[0]
    return folder if folder in parts else "core"


def _crossing(name: str, tree: ast.Module, trees: dict[str, ast.Module], parts: list[str]) -> list[str]:
    """The imports of a module that its part may not have."""
    found = []
    here = _part(name, parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            imported = [each if each in trees else str(node.module) for each in names]
        else:
            continue
        for other in imported:
            there = _part(other, parts)
            if other.startswith("psrun.") and there not in (here, "core") and (here, there) not in _ALLOWED:
                found.append(f"{name} -> {other}")
    return sorted(set(found))


def _complexity(files: list[Path]) -> str:
    try:
        from radon.complexity import average_complexity, cc_visit
    except ImportError:
        return "is not measured: radon is not installed"
    blocks = [block for file in files for block in cc_visit(file.read_text(encoding="utf-8"))]
    return f"{average_complexity(blocks):.1f}"


def _any(tree: ast.Module) -> int:
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))


def _replaced(tree: ast.Module) -> list[str]:
    """Functions and classes that are set as attributes of objects that the module does not own."""
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            owner = ast.unparse(target.value)
            value = node.value
            is_code = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in functions)
            is_code = is_code or (
                isinstance(value, ast.Call) and ast.unparse(value.func).endswith(("partial", "wraps"))
            )
            if is_code and owner.split(".")[0] not in _OWN:
                found.append(f"{owner}.{target.attr}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "mock.patch.object", "patch.object"):
            found.append(", ".join(ast.unparse(argument) for argument in node.args[:2]))
    return found


def _imported_by_run(checkout: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "names")
        options = ["cluster=none", "trainer.epochs=1", "trainer.steps_per_epoch=2", f"hydra.run.dir={folder}/run"]
        command = [sys.executable, "-c", _RUN, str(names), *options]
        subprocess.run(command, cwd=checkout, stdout=subprocess.DEVNULL, check=True)
        return len({name for name in names.read_text(encoding="utf-8").split() if name.startswith("psrun")})


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve())
