"""psrun: parameter server training experiments for TensorFlow 2."""

from importlib.metadata import version

__version__ = version("psrun")
