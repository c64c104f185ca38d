"""Experiment trackers, beside the run folder and the terminal: one module each."""
