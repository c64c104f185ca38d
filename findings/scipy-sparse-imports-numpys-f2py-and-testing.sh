#!/usr/bin/env bash
# SciPy 1.17.0 with NumPy 2.4.0: `import scipy.sparse` also imports numpy.f2py and numpy.testing. SciPy's layer for array
# libraries copies each public name of NumPy, and NumPy loads these two when they are asked for. Seen: neither is in
# sys.modules after `import numpy`, both are after `import scipy.sparse`. A program that imports only sparse matrices
# pays for a compiler of Fortran and a test framework.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q scipy==1.17.0 numpy==2.4.0
"$folder/venv/bin/python" - <<'END'
import sys

import numpy

names = ("numpy.f2py", "numpy.testing")
before = [name for name in names if name in sys.modules]
import scipy.sparse

after = [name for name in names if name in sys.modules]
print(f"after import numpy: {before}; after import scipy.sparse: {after}")
assert before == [] and after == list(names)
END
