"""`cluster=slurm` and `psrun submit slurm`."""
