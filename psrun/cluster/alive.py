"""Reports whether the server on a port of this host answers, as an exit code: `python -m psrun.cluster.alive PORT`.

For probes of containers. TensorFlow's servers have no health service, and a stopped process still accepts connections.
"""

from __future__ import annotations

import sys

from psrun.cluster.probe import answers

_WITHIN_S = 10.0

if __name__ == "__main__":
    sys.exit(0 if answers(f"localhost:{sys.argv[1]}", timeout_s=_WITHIN_S) else 1)
