"""The command line: the commands, and the boundary to Hydra for everything else."""
