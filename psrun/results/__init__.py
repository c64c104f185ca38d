"""The results of a run: events, the run folder, the console, trackers; and their views, `report` and `watch`."""
