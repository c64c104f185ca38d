"""psrun: parameter server training experiments for TensorFlow 2."""

import importlib


def __getattr__(name: str) -> str:
    """The version, as `__version__`: read on demand, as few commands need it and it takes a tenth of their imports."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    version: str = importlib.import_module("importlib.metadata").version("psrun")
    globals()[name] = version
    return version
