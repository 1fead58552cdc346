"""Text to rows to batches: numpy only, never jax."""
