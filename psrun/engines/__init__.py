"""Engines that exist already and run psrun's tasks on more than one machine: Slurm, Kubernetes, Ray."""
