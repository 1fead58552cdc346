"""Exports models in Hugging Face's format."""
