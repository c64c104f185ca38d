"""Models of another library as models of tf-keras. Imports none of these libraries."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping
from typing import Any

from psrun.errors import ExportError
from psrun.tf_internals.keras import ModelWithOwnChildren


class AdaptedModel(ModelWithOwnChildren):
    """A model of another library: its weights are those of that model, and its call is a call of that model.

    tf-keras compiles it, does its training step, and keeps its checkpoints.
    """

    def save(self, filepath: Any, *arguments: Any, **options: Any) -> None:
        """Raises ExportError: tf-keras could not load it again."""
        raise self._not_saved(filepath)

    def save_weights(self, filepath: Any, *arguments: Any, **options: Any) -> None:
        """As in tf-keras, in TensorFlow's format; raises ExportError for .h5, which tf-keras could not load again."""
        if str(filepath).endswith((".keras", ".h5", ".hdf5")) or options.get("save_format") in ("keras", "h5"):
            raise self._not_saved(filepath)
        super().save_weights(filepath, *arguments, **options)

    def _not_saved(self, filepath: Any) -> ExportError:
        return ExportError(
            f"{filepath}: a model of {self.library} cannot be saved as one of tf-keras; write a SavedModel with "
            "export.at_end=true or mode=export, and weights with save_weights_only and a filepath without extension"
        )

    @property
    @abc.abstractmethod
    def library(self) -> str:
        """The library and its version, as run.json shows it."""

    @property
    @abc.abstractmethod
    def has_losses(self) -> bool:
        """Whether layers add to the loss; known once the model was called. `losses` has them only within a step."""

    @property
    @abc.abstractmethod
    def layer_with_state(self) -> str | None:
        """The name of a layer that keeps its state from batch to batch; None if there is none."""

    @abc.abstractmethod
    def takes_one_tensor(self, features: Collection[str]) -> bool:
        """Whether it takes one tensor, instead of the data's features by name."""

    @property
    @abc.abstractmethod
    def last_activation(self) -> str | None:
        """The name of the activation of the output layer; None if it is unknown."""

    @abc.abstractmethod
    def lists_by_input(self) -> Mapping[str, bool]:
        """The declared inputs by name, each with whether it takes lists; empty if none are declared."""

    @abc.abstractmethod
    def own_layers(self) -> list[Any]:
        """All layers of the other library, those within other layers too."""

    @abc.abstractmethod
    def ids_of(self, layer: Any) -> Callable[[Any], Any] | None:
        """The inputs of an embedding layer as a function of the model's features; None if there is no such function.

        Args:
          layer: of psrun, within the model.
        """
