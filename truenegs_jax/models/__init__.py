"""Networks and heads in Flax; no other folder imports flax.linen."""
