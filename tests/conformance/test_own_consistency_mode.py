"""A consistency mode of the user's, which adds a stage from outside the package."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from support import REPOSITORY, variables

SHORT = ("model=dense", "optimizer=sgd", "trainer.epochs=1", "trainer.steps_per_epoch=3", "evaluation=none")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The mode of the guide, in a user's project."""
    page = (REPOSITORY / "docs/guides/consistency.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE))
    assert len(files) == 3
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "project")
    yield f"hydra.searchpath=[file://{tmp_path}/project/myconf]", "consistency=damped"
    for name in [name for name in sys.modules if name.startswith("damped")]:
        del sys.modules[name]


@pytest.mark.inprocess
def test_a_consistency_mode_from_outside_the_package_trains(train, project):
    """Half of each gradient is half of the learning rate, for SGD."""
    rate = "optimizer.learning_rate"
    result, folder = train(*SHORT, *project, f"{rate}=0.2", num_workers=1)
    assert (result["consistency"]["mode"], result["consistency"]["factor"]) == ("damped", 0.5)
    _, expected = train(*SHORT, f"{rate}=0.1", num_workers=1)
    held = variables(folder)
    for name, value in variables(expected).items():
        if np.size(value) > 1:
            np.testing.assert_allclose(held[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
