"""Whether one token may stand for another: sources of pairs, device tables.

Imports `runtime`, `config` and `data`. Start reading in `sources.py`, whose
pairs `run_table.py` puts into a table of `table.py`.
"""
