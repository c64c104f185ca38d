"""Topologies: which servers there are, where, and how they are started."""
