"""The results of a run: events, the run folder and the state that it shows, the console, trackers."""
