"""What a run asks `psrun.keras3`. Without that folder there are no models, losses and metrics of Keras 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from psrun.keras3.model_functions import converted_loss, converted_metrics, returned_model
except ModuleNotFoundError as error:
    if not str(error.name).startswith("psrun.keras3"):
        raise

    def returned_model(load: Callable[[], Any], call: Callable[[], Any], seed: int) -> Any:
        """What a model function returns."""
        return call()

    def converted_loss(loss: Any) -> Any:
        """The loss."""
        return loss

    def converted_metrics(metrics: Any) -> Any:
        """The metrics."""
        return metrics


__all__ = ["converted_loss", "converted_metrics", "returned_model"]
