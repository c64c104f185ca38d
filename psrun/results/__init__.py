"""What a run leaves behind: events, the run folder, the console, trackers; and views of it: `report`, `watch`."""
