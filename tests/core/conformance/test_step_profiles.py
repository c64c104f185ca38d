"""`profile.steps`: the profile of some steps, as TensorFlow reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from outcomes import events
from profile_files import has_steps
from support import STEPS


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("overrides", "profiled"),
    [
        # Executions of three steps are profiled whole; the second epoch begins within the profile.
        (["profile.steps=[7, 14]"], [6, 15]),
        (["profile.steps=[0, 2]", "trainer=fit"], [0, 3]),
        (["profile.steps=[20, 90]", "cluster=none"], [18, 24]),  # to the end
    ],
)
def test_the_steps_are_in_the_profile(train, overrides, profiled):
    result, folder = train(*overrides)
    assert result["steps"]["applied"] == 2 * STEPS
    recorded = result["profile"]
    assert (recorded["steps"], recorded["tasks"]) == (profiled, ["chief-0"])
    (file,) = Path(recorded["path"]).iterdir()
    assert file.is_relative_to(folder.tensorboard / "plugins" / "profile")
    assert has_steps(file)
    warnings = [event["message"] for event in events(folder, "warning")]
    assert len([text for text in warnings if text.startswith("profile.steps: [20, 90] ends after")]) == (
        profiled == [18, 24]
    )
    assert not list(folder.path.glob(".tasks/*"))


@pytest.mark.inprocess
def test_steps_that_never_come_and_a_profiler_in_use_are_warnings(train, tmp_path):
    import tensorflow as tf

    result, folder = train("profile.steps=[24, 30]", "cluster=none")
    assert "profile" not in result
    assert [event["message"] for event in events(folder, "warning")] == [
        "profile.steps: [24, 30] begins after the last step, 24; nothing is profiled"
    ]
    tf.profiler.experimental.start(str(tmp_path / "own"))
    try:
        result, folder = train("profile.steps=[3, 6]", "cluster=none")
    finally:
        tf.profiler.experimental.stop(save=False)
    (message,) = [event["message"] for event in events(folder, "warning")]
    assert message.startswith("profile.steps: nothing is profiled: Another profiler is running")
    assert result["steps"]["applied"] == 2 * STEPS
