"""Turns text into rows, and rows into batches: numpy only, never jax."""
