"""The packages of the wheel; pyproject.toml has everything else."""

import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

# pip looks for packages that psrun needs before it compares `requires-python`, and names one of them instead of Python.
_DECLARED = Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8")
_FIRST, _AFTER_LAST = map(int, re.findall(r"3\.(\d+)", re.findall(r"requires-python = (.*)", _DECLARED)[0]))
if not (3, _FIRST) <= sys.version_info[:2] < (3, _AFTER_LAST):
    sys.exit(f"psrun needs Python 3.{_FIRST} to 3.{_AFTER_LAST - 1}; this is Python {sys.version.split()[0]}")

# conf/ stands at the top of the repository and is a package of data inside psrun once installed.
setup(packages=[*find_packages(include=["psrun", "psrun.*"]), "psrun.conf"])
