"""Runs on stores of fsspec: a run works in a local folder, which the process that was started mirrors to a URL."""

from psrun.runs.stores.keeper import begin
from psrun.runs.stores.views import local

__all__ = ["begin", "local"]
