"""Training: one step, one loop, meshes, optimizer, metrics."""
