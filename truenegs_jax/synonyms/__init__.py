"""Whether one token may stand for another: sources of pairs, device tables.

Imports `runtime`, `config` and `data`. Start reading in `sources.py`; the
result is the table of `table.py`.
"""
