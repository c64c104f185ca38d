"""An engine of the user's: three files outside the package, as a project of theirs has them; a budget that is spent."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_injection import MOSTLY_WAITING
from support import many_epochs

pytestmark = pytest.mark.cluster

CHOICE = """
from dataclasses import dataclass, field
from typing import ClassVar

from psrun.config import choices


@dataclass(frozen=True)
class Marked(choices.Local):
    implementation: ClassVar[str] = "engines.backend:open_backend"
    mark: str = field(kw_only=True)
"""
YAML = """
defaults: [local, _self_]
_target_: engines.choice.Marked
mark: none
"""
BACKEND = """
import portpicker

from psrun.launch.backend import Backend, TaskProcess
from psrun.launch.child_processes import start_alone


def open_backend(launch):
    def start(folder, environment, log):
        with log.open("a") as lines:
            lines.write(f"started by the {launch.run.cluster.mark} engine\\n")
        return start_alone(folder, environment, log)

    addresses = {task: f"localhost:{portpicker.pick_unused_port()}" for task in launch.plan.addressed()}
    folder = launch.folder.path
    return Backend({task: TaskProcess(task, addresses, folder, start) for task in launch.plan.tasks()}, addresses)
"""


def test_an_engine_of_the_users_own(start, tmp_path: Path):
    files = {"conf/cluster/marked.yaml": YAML, "engines/choice.py": CHOICE, "engines/backend.py": BACKEND}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = start("--config-dir", str(tmp_path / "conf"), "cluster=marked", "cluster.mark=blue", many_epochs(20),
                "cluster.num_ps=1", "trainer.steps_per_epoch=20", "evaluation=none", "cluster.restart.budget=1",
                MOSTLY_WAITING, PYTHONPATH=str(tmp_path))  # fmt: skip
    run.wait_for("checkpoint")
    run.kill("ps-0")
    assert run.wait_for("recovery")["task"] == "ps-0"
    log = (run.folder / "logs" / "ps-0.log").read_text()
    assert log.count("started by the blue engine") == 2
    run.kill("ps-0")
    assert run.end() == 1
    assert run.result["error"]["type"] == "BudgetSpentError"
    assert run.result["cluster"] == {"topology": "local", "num_workers": 2, "num_ps": 1}
