"""What comes out of a run: events to the console, the run folder and TensorBoard."""
