"""Compares recipes over pre-training seeds: intervals, tables and curves."""
