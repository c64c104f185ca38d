"""Example data of recommenders."""
