"""Measures hard corrections: rates, cases, and agreement of sources."""
