"""What becomes of signals while Hydra composes a configuration."""

from __future__ import annotations

import pathlib
import signal
import sys

import pytest
from hydra.core.global_hydra import GlobalHydra

from psrun import composing
from psrun.sweeps.interruption import Ended


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), Ended(signal.SIGTERM)], ids=lambda each: type(each).__name__)
def test_a_signal_that_comes_while_hydra_opens_a_file_is_not_hidden(monkeypatch, raised):
    """Hydra's `finally: f.close()` fails there, as there is no f yet."""
    opened = pathlib.Path.open

    def told(path, *args, **kwargs):
        if path.suffix == ".yaml":
            raise raised
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(pathlib.Path, "open", told)
    monkeypatch.setattr(sys, "argv", ["psrun"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as it will be: taken back at the end
    try:
        with pytest.raises(type(raised)) as found:
            composing.run(lambda composed: None)
    finally:
        GlobalHydra.instance().clear()
    assert found.value is raised
