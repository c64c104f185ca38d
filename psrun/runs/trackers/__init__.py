"""Trackers of other projects."""
