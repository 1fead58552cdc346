"""Pre-trains a model: a run from its config to its export.

It may import what trains, measures corrections and reports. Start with `run`.
"""
