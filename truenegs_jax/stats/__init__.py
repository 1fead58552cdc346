"""Confidence intervals and tests of shares, means and differences."""
