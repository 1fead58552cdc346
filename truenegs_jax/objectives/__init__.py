"""Objectives: masking, true negatives and losses as sums and counts."""
