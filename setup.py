"""The packages of the wheel; pyproject.toml has everything else."""

from setuptools import find_packages, setup

# conf/ stands at the top of the repository and is a package of data inside psrun once installed.
setup(packages=[*find_packages(include=["psrun", "psrun.*"]), "psrun.conf"])
