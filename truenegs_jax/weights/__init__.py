"""Weights that a run starts from: released ones, converted ones, our own."""
