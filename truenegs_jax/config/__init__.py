"""Every key of a config, once: default, range or choices, meaning.

Imports `runtime` only. Start reading in `sections.py`, the table; `flags` and
`load` make configs of it, and `grammar` parses values that hold lists.
"""
