"""Purely functional networks; nothing outside this folder imports flax.linen."""
