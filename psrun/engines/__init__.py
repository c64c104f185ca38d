"""Engines that run the tasks of a run on other machines: Slurm, Ray, Kubernetes."""
