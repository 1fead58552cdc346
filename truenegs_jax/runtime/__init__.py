"""Errors, random numbers, processes, cache, flags and progress."""
