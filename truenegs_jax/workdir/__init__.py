"""A run's folder on disk: its files, lock, metrics and checkpoints.

Imports `runtime`, `config`, `data` and `models`. Start reading in `files.py`.
"""
