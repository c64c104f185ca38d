"""Metrics of lists of items, of segments of examples, and intervals."""
