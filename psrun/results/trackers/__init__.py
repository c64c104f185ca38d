"""Experiment trackers, in addition to the run folder and the terminal."""
