"""A package beside psrun, with a part that offers one of each kind."""
