"""Sources of examples. See `psrun.data.source` for what one must offer."""
