"""Tokenization: WordPiece vocabularies and fast encoding of text."""
