"""Recommenders: models, metrics of lists and by segment, candidates, the best items of users, example data."""
