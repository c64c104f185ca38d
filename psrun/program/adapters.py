"""The door for models of other libraries than tf-keras: parts adapt them to models of tf-keras.

Imports none of these libraries.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tf_keras

from psrun import parts
from psrun.errors import ExportError
from psrun.models.model import Model
from psrun.tf_internals.keras import ModelWithOwnChildren


class AdaptedModel(ModelWithOwnChildren):
    """A model of another library: it has the weights of that model, and its call is a call of that model.

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
            f"{filepath}: a model of {self.library} cannot be saved as one of tf-keras; write a SavedModel "
            "with export.at_end=true or psrun export RUN, and weights with save_weights_only and a filepath without "
            "extension"
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
    def looked_up(self) -> list[Any]:
        """The trained weights of embedding layers of the other library: variables, and shards of them."""

    @abc.abstractmethod
    def ids_of(self, layer: Any) -> Callable[[Any], Any] | None:
        """The inputs of an embedding layer as a function of the model's features; None if there is no such function.

        Args:
          layer: of psrun, within the model.
        """


@dataclass(frozen=True)
class ModelFunction:
    """A model function with its arguments.

    Attributes:
      load: imports the module of the function.
      call: returns what the function returns.
      seed: for the initial values of the model.
    """

    load: Callable[[], Any]
    call: Callable[[], Any]
    seed: int


class Adapter(abc.ABC):
    """Makes models, losses and metrics of a library trainable by tf-keras. It returns all others unchanged.

    A part names its adapter in `psrun.parts.Part.models`. psrun asks the adapters of its own parts about every model.
    It asks the adapters of other packages about a model that is still unknown, and then about its loss and metrics.
    """

    @abc.abstractmethod
    def adapt(self, function: ModelFunction) -> Any:
        """Calls a model function.

        Returns:
          What the function returned. For a model of the library, a `psrun.models.model.Model` or a `tf_keras.Model`.

        Raises:
          ConfigError: the model cannot be trained.
        """

    def loss(self, loss: Any) -> Any:
        """A loss, or losses by output, as `tf_keras.Model.compile` takes them."""
        return loss

    def metrics(self, metrics: Any) -> Any:
        """Metrics, or metrics by output, as `tf_keras.Model.compile` takes them. Raises ConfigError."""
        return metrics


def own() -> list[Adapter]:
    """The adapters of psrun's own parts."""
    return _adapters(parts.own())


def others() -> list[Adapter]:
    """The adapters of other packages."""
    return _adapters(parts.others())


def _adapters(offered: Iterable[parts.Part]) -> list[Adapter]:
    return [parts.load(part.models)() for part in offered if part.models]


def adapted(adapters: Sequence[Adapter], function: ModelFunction) -> Any:
    """What a model function returns, changed by each adapter that knows it."""
    for adapter in adapters:
        function = replace(function, call=functools.partial(adapter.adapt, function))
    return function.call()


def is_model(returned: Any) -> bool:
    """Whether a model function returned what tf-keras trains."""
    network = returned.network if isinstance(returned, Model) else returned
    return isinstance(network, tf_keras.Model)


def loss(adapters: Sequence[Adapter], given: Any) -> Any:
    """A loss, or losses by output, changed by each adapter that knows them."""
    for adapter in adapters:
        given = adapter.loss(given)
    return given


def metrics(adapters: Sequence[Adapter], given: Any) -> Any:
    """Metrics, or metrics by output, changed by each adapter that knows them."""
    for adapter in adapters:
        given = adapter.metrics(given)
    return given
