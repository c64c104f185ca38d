"""Layers, optimizers and models work without the runner; what psrun imports is declared."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest
from sources import modules, nodes
from support import REPOSITORY

ROOT = REPOSITORY

LIBRARIES = ("hydra", "omegaconf", "portpicker", "psutil", "rich")
ROOMS = ("checkpoint", "cli", "cluster", "config", "launch", "program", "results", "roles", "training")
# Imports every module of the three packages but the one for Keras 3, which itself imports rich.
IMPORTS = """
import importlib, pkgutil, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv:
            raise ModuleNotFoundError(f"{name} is refused", name=name)

sys.meta_path.insert(0, Refusing())
for package in map(importlib.import_module, ("psrun.layers", "psrun.optimizers", "psrun.models")):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if module.name != "psrun.layers.keras3":
            importlib.import_module(module.name)
assert "keras" not in sys.modules
print(len([name for name in sys.modules if name.startswith("psrun.")]))
"""


@pytest.mark.tensorflow
def test_layers_optimizers_and_models_import_nothing_of_the_runner() -> None:
    refused = [*LIBRARIES, *(f"psrun.{room}" for room in ROOMS)]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    command = [sys.executable, "-c", IMPORTS, *refused]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) > 20


def test_everything_imported_is_declared() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for group in project["optional-dependencies"].values() for each in group]
    declared = {re.split(r"[><=\[]", each)[0].lower() for each in [*project["dependencies"], *extras]}
    called = {
        "grpc": "grpcio",
        "hydra": "hydra-core",
        "mlflow": "mlflow-skinny",
        "tf_keras": "tf-keras",
        "yaml": "pyyaml",
    }
    imported = {name.partition(".")[0] for path in modules() for node in nodes(path) for name in _names(node)}
    others = imported - {*sys.stdlib_module_names, "psrun"}
    assert {called.get(name, name) for name in others} <= declared


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and node.level == 0 else []
