"""Metrics of probabilities (`counters`), and the interface of metrics of gathered examples (`gathered`)."""
