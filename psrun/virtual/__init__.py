"""Clusters in virtual time: one process trains as many workers would."""
