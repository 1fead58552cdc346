"""Text of files and data sets as one stream of documents.

It may import `runtime` and `config`. Start with `sources_spec.open_corpus`,
whose parts `corpus` reads in order or as a mixture.
"""
