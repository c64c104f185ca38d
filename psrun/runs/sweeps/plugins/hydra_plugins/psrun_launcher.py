"""psrun's launcher where Hydra searches for plug-ins: in the namespace package `hydra_plugins`."""

from __future__ import annotations

from psrun.runs.sweeps.hydra_sweeps import SweepLauncher


class PsrunLauncher(SweepLauncher):
    """The launcher of every sweep; it may contain another one."""
