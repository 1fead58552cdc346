"""Measures robustness: scores of a fine-tuned model on transformed texts."""
