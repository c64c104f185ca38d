"""What Hydra's sweepers, launchers and jobs are given. Its type has the one private name of Hydra's that psrun uses."""

from __future__ import annotations

from hydra._internal.callbacks import Callbacks
from hydra.core.config_loader import ConfigLoader
from hydra.types import HydraContext
from omegaconf import DictConfig


def hydra_context(config: DictConfig, loader: ConfigLoader | None) -> HydraContext:
    """The context of a run or a sweep, with the callbacks of `hydra.callbacks`.

    Args:
      loader: None for a run; launchers compose with it.
    """
    return HydraContext(loader, Callbacks(config))  # type: ignore[arg-type]
