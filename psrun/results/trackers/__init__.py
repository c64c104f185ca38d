"""Who else is told of a run, beside its folder and the terminal."""
