"""Every key of a config, once: default, range or choices, meaning.

Imports `runtime` only. Start reading in `grammar.py` for the values that hold
lists.
"""
