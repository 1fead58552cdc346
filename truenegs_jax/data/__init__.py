"""Turns text into rows, and rows into batches: numpy only, never jax.

It may import `runtime` and `config`. Start reading in `prepare`.
"""
