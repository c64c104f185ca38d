"""Which versions of Python psrun installs on."""

from __future__ import annotations

import runpy
import sys

import pytest
from support import REPOSITORY


@pytest.mark.parametrize("version", [(3, 9, 18), (4, 0, 0)])
def test_another_python_is_named_before_pip_looks_for_packages(monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SystemExit, match=r"psrun needs Python 3\.10 to 3\.\d+; this is Python "):
        runpy.run_path(str(REPOSITORY / "setup.py"))
