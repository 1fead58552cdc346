"""Estimates shares, means and differences with their confidence intervals.

It imports nothing else of the package, so that every folder may use it. Start
reading in `intervals`, the only module.
"""
