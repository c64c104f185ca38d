"""Metrics of ranked lists (`ranking`) and of probabilities (`counters`). docs/guides/metrics.md has their meaning."""
