"""The command line: the verbs, and the edge to Hydra for everything else."""
