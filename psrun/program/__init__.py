"""What a run trains: a compiled model with its data, loss, metrics and optimizer, built in the scope of a strategy."""
