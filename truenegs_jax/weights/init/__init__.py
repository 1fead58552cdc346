"""Loads weights into the parameters of a model."""
