"""Models of recommenders."""
