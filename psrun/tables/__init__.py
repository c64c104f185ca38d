"""Tables in files: reading, what each column is, splits, prepared rows, and the command `psrun data`."""
