"""Kubernetes: the manifests of a run for kubectl, and the task of a pod."""
