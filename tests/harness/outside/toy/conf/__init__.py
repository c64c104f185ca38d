"""The choices of the toy."""
