"""Trains: one step and one loop for both trainings, with meshes and optimizer.

It may import networks, objectives, weights, synonyms, data and workdirs. Start
reading in `step`, then `loop`.
"""
