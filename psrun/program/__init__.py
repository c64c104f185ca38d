"""The program of a run: a compiled model with data, loss, metrics and optimizer, built in the scope of a strategy."""
