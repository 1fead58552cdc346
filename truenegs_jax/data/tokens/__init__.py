"""Vocabularies and fast encoding of text.

It may import `runtime` alone. Start with `tokenizer.load_tokenizer`; `encoder`
gives the same ids faster, `train_vocabulary` makes a vocabulary.
"""
