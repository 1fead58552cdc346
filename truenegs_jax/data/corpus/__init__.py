"""Reads text from files and data sets as a stream of documents."""
