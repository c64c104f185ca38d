"""Data sources. `psrun.data.source` defines their interface."""
