"""`psrun list`: the runs and sweeps below folders."""
