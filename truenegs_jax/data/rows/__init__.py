"""Rows: fixed-length training examples, prepared on disk and batched."""
