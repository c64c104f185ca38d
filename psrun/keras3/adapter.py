"""Calls model functions that may return a model of Keras 3. Imports Keras 3 only if the function did."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.models.model import Model
from psrun.program.adapters import Adapter, ModelFunction

if TYPE_CHECKING:
    from psrun.keras3.internals import VariableCreation

_BACKEND = "KERAS_BACKEND"


def _is_imported() -> bool:
    return "keras" in sys.modules


class Keras3Adapter(Adapter):
    """Makes models, losses and metrics of Keras 3 trainable by tf-keras."""

    def adapt(self, function: ModelFunction) -> Any:
        """What a model function returns, a model of Keras 3 as one of tf-keras.

        Raises:
          ConfigError: the model has layers of both libraries, or layers that cannot be trained; or Keras 3 has another
            backend.
        """
        with _named_errors():
            function.load()
            known = _is_imported()
            with _creating(function.seed) as creation:
                returned = function.call()
            if not known and _is_imported() and _network(returned) is not None:  # imported by the function itself
                with _creating(function.seed) as creation:
                    returned = function.call()
        if creation is None:
            return returned
        return _adapted(returned, creation)

    def loss(self, loss: Any) -> Any:
        """A loss, or losses by output, losses of Keras 3 as losses of tf-keras.

        Raises:
          ConfigError: tf-keras has no such reduction.
        """
        if not _is_imported():
            return loss
        from psrun.keras3 import compile_settings

        return compile_settings.converted_loss(loss)

    def metrics(self, metrics: Any) -> Any:
        """Metrics, metrics of Keras 3 as metrics of tf-keras.

        Raises:
          ConfigError: tf-keras has no such metric.
        """
        if not _is_imported():
            return metrics
        from psrun.keras3 import compile_settings

        return compile_settings.converted_metrics(metrics)


@contextlib.contextmanager
def _creating(seed: int) -> Iterator[VariableCreation | None]:
    """In this context the variables of Keras 3 are made by psrun; None if Keras 3 is not imported."""
    if not _is_imported():
        yield None
        return
    import keras

    if keras.backend.backend() != "tensorflow":
        raise _of_backend(keras.backend.backend())

    from psrun.keras3 import initial_values, internals

    internals.start_afresh()
    # Keras 3 draws the seeds of initializers from Python's random numbers, of which connecting to servers draws some.
    keras.utils.set_random_seed(seed)
    creation = internals.VariableCreation(initial_values.create)
    with creation.active():
        yield creation


def _network(returned: Any) -> Any:
    """The Keras 3 model that a function returned, as it is or in a Model; None for other values."""
    import keras

    network = returned.network if isinstance(returned, Model) else returned
    return network if isinstance(network, keras.Model) else None


def _adapted(returned: Any, creation: VariableCreation) -> Any:
    from psrun.keras3 import compile_settings, model

    network = _network(returned)
    if network is None:
        own = returned.network if isinstance(returned, Model) else returned
        if isinstance(own, tf_keras.Model) and creation.created:
            what = f"{creation.created[0].path} is a weight of a keras.layers layer in a tf_keras.Model"
            raise ConfigError([Problem("model", model.mixed(what))])
        return compile_settings.with_converted(returned) if isinstance(returned, Model) else returned
    whole = returned if isinstance(returned, Model) else Model(network)
    whole = compile_settings.with_compiled(whole, network)
    return compile_settings.with_converted(replace(whole, network=model.Keras3Model(network, creation)))


# -- mistakes


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """Raises errors of another backend, and of layers of both libraries in one model, as such."""
    try:
        yield
    except ConfigError as error:
        if error.__cause__ is not None and _mixes(error.__cause__):
            from psrun.keras3 import model

            raise ConfigError([Problem("model", model.mixed(str(error.problems[0].message)))]) from error
        if os.environ.get(_BACKEND, "tensorflow") != "tensorflow" and os.environ[_BACKEND] in str(error):
            raise _of_backend(os.environ[_BACKEND]) from error
        raise


def _mixes(error: BaseException) -> bool:
    """Whether code of one library failed on an object of the other one."""
    others = {"keras": "tf_keras", "tf_keras": "keras"}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        other = others.get(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        local = [*frame.f_locals.values()]
        local += [each for value in local if isinstance(value, list | tuple) for each in value]
        if other is not None and any(type(value).__module__.partition(".")[0] == other for value in local):
            return True
    return False


def _of_backend(name: str) -> ConfigError:
    message = f"the backend of Keras 3 is {name}, but parameter servers train with TensorFlow"
    return ConfigError([Problem("model", f"{message}; set {_BACKEND}=tensorflow, or unset it")])
