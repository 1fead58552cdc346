"""What every command needs: errors, files, processes, random numbers, progress.

Imports nothing of the package. Start reading in `errors.py` and `files.py`.
"""
