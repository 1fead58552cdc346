"""Estimates shares and means with intervals, and compares models and recipes.

It imports nothing else of the package, so that every folder may use it. Start
reading in `intervals`; `differences` builds on it.
"""
