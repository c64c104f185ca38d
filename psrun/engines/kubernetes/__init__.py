"""Kubernetes: the manifests of a run, handed over and followed by kubectl."""
