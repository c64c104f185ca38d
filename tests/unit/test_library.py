"""Layers, optimizers and models work without the runner, and without what only the runner needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
