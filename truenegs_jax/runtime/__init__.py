"""Foundations of all commands: errors, files, processes, randomness, progress.

Imports nothing of the package. Start reading in `errors.py` and `files.py`.
"""
