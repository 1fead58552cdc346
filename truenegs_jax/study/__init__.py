"""Runs recipes side by side over seeds and compares them."""
