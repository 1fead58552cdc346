"""Pre-trains a model: a run from its config to its export.

It may import what trains and reports, but no other task. Start with `run`.
"""
