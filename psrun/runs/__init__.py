"""Many runs: sweeps, search, list, logs, stop, rm, diff, reproduce, report, watch, completion, and trackers."""
