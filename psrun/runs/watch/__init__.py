"""Read-only views of runs and sweeps, during and after their execution."""
