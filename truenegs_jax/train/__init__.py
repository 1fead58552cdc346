"""How it is learned: one step, one loop, checkpoints, meshes, writers."""
