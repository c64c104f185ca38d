#!/usr/bin/env bash
# pyarrow 26.0.1 with pandas 3.0.0: pa.array imports pandas if it is installed, also for a plain NumPy array.
# Seen: "pandas" is in sys.modules after pa.array(np.arange(3)), and not after import pyarrow. A command that avoids
# pandas to start fast pays for its import with the first array that it makes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1 pandas==3.0.0
"$folder/venv/bin/python" - <<'END'
import sys
import time

import numpy as np
import pyarrow as pa

assert "pandas" not in sys.modules
began = time.perf_counter()
pa.array(np.arange(3))
first = time.perf_counter() - began
began = time.perf_counter()
pa.array(np.arange(3))
print(f"pandas imported: {'pandas' in sys.modules}; first array {first:.3f} s, second {time.perf_counter() - began:.6f} s")
assert "pandas" in sys.modules
END
