"""GLUE, SQuAD and user tasks: reading, encoding, batching and scoring.

It may import `data/`, `stats/` and what is below them; it knows no network.
Start reading in `task`.
"""
