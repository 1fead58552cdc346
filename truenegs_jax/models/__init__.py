"""Purely functional networks; only this folder imports flax.linen."""
