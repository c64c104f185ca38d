"""What psrun's modules hold: private names of others, imports, and the places of the faults of `tests/mutants.py`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mutants
import pytest
from bounds import BOUND_S
from sources import PSRUN, modules, nodes
from support import REPOSITORY

# -- private names of TensorFlow, tf-keras and Hydra occur only in the modules that own them

OWNERS = ("tf_internals", "keras3/internals.py", "cli/hydra_context.py")
MODULES = ("tensorflow.python", "tensorflow.core", "tf_keras.src", "keras.src", "hydra._internal")
# Of Python's namedtuples, `os`, `atexit` and `argparse`, which have no others; and keys of a configuration.
PUBLIC = {"_replace", "_exit", "_run_exitfuncs", "_SubParsersAction", "_target_"}
# Which psrun's own classes could take for names of theirs, as they assign them or inherit them.
FOREIGN = {
    "_built", "_deduplicate_sparse_grad", "_dense_var_to_tensor", "_flatten_layers", "_inbound_nodes", "_index_dict",
    "_internal_apply_gradients", "_is_graph_network", "_no_dependency", "_steps_per_execution", "_supports_tf_logs",
    "_trackable_children", "_var_key",
}  # fmt: skip


def private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def own(node: ast.expr) -> bool:
    """Whether it is an object of the class around it: `self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def defined(tree: list[ast.AST]) -> Iterator[str]:
    """Private names that a module defines: functions, classes, variables, and attributes of its objects."""
    for node in tree:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and own(node.value):
            yield node.attr


def used(tree: list[ast.AST]) -> Iterator[tuple[int, str, bool]]:
    """The private attributes that a module reads: line, name, and whether the object is the module's own."""
    for node in tree:
        if isinstance(node, ast.Attribute) and private(node.attr):
            yield node.lineno, node.attr, own(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and private(name.value):
                yield node.lineno, str(name.value), own(node.args[0])


def imported(tree: list[ast.AST]) -> Iterator[str]:
    for node in tree:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def foreign(path: Path, tree: list[ast.AST], everywhere: set[str]) -> list[str]:
    """What is private to others in a module, with lines where known."""
    here = set(defined(tree))
    asked = [
        f"{path}:{line} {name}"
        for line, name, its_own in used(tree)
        if name in FOREIGN or name not in (everywhere if its_own else here)
    ]
    brought = [f"{path} {name}" for name in imported(tree) if name.startswith(MODULES)]
    return [*brought, *asked, *(f"{path} defines {name}" for name in sorted(here & FOREIGN))]


def test_private_names_of_others_are_only_in_the_modules_that_own_them():
    files = [path for path in modules() if not str(path.relative_to(PSRUN)).startswith(OWNERS)]
    assert len(files) > 200
    trees = {path: nodes(path) for path in files}
    everywhere = {name for tree in trees.values() for name in defined(tree)}
    assert [each for path, tree in trees.items() for each in foreign(path, tree, everywhere)] == []


def test_the_rule_finds_what_it_is_for():
    source = "from tensorflow.python.eager import record\nx._v\nself._built\ngetattr(layer, '_inbound_nodes', None)"
    tree = [*ast.walk(ast.parse(source))]
    assert list(imported(tree)) == ["tensorflow.python.eager.record"]
    assert list(used(tree)) == [(2, "_v", False), (3, "_built", True), (4, "_inbound_nodes", False)]


# -- layers, optimizers and models work without the runner; what psrun imports is declared

LIBRARIES = ("hydra", "omegaconf", "portpicker", "psutil", "rich")
ROOMS = ("checkpoint", "cli", "cluster", "config", "launch", "program", "results", "roles", "training")
# Imports every module of the three packages.
IMPORTS = """
import importlib, pkgutil, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv:
            raise ModuleNotFoundError(f"{name} is refused", name=name)

sys.meta_path.insert(0, Refusing())
for package in map(importlib.import_module, ("psrun.layers", "psrun.optimizers", "psrun.models")):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
assert "keras" not in sys.modules
print(len([name for name in sys.modules if name.startswith("psrun.")]))
"""


@pytest.mark.tensorflow
def test_layers_optimizers_and_models_import_nothing_of_the_runner() -> None:
    refused = [*LIBRARIES, *(f"psrun.{room}" for room in ROOMS)]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    command = [sys.executable, "-c", IMPORTS, *refused]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=BOUND_S)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) > 15


def test_everything_imported_is_declared() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = [each for group in project["optional-dependencies"].values() for each in group]
    declared = {re.split(r"[><=\[]", each)[0].lower() for each in [*project["dependencies"], *extras]}
    called = {
        "grpc": "grpcio",
        "hydra": "hydra-core",
        "mlflow": "mlflow-skinny",
        "tf_keras": "tf-keras",
        "yaml": "pyyaml",
    }
    names = {name.partition(".")[0] for path in modules() for name in imported(nodes(path))}
    others = names - {*sys.stdlib_module_names, "psrun"}
    assert {called.get(name, name) for name in others} <= declared


# -- the list of faults


def test_each_mutant_fits_the_code():
    faults = mutants.read()
    assert [f"{fault}: {why}" for fault in faults if (why := fault.misfit(REPOSITORY))] == []
    assert [name for name, count in Counter(map(str, faults)).items() if count > 1] == []
