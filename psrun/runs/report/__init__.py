"""Reports over finished and running runs: a table, CSV, JSON, and a page with charts. Reads run folders only."""
