"""Cheap steps on parameter servers: several steps in one closure, and fewer messages for each."""
