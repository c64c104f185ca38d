"""Sweeps: starts the jobs of `psrun -m` as processes, restarts and ends them; without TensorFlow and Hydra."""
