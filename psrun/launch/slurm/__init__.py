"""Slurm: which task of a run a Slurm task is, how they find each other, and how jobs are handed over and followed."""
