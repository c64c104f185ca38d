"""A project to begin with: own data, an own model, their configuration and a test."""
