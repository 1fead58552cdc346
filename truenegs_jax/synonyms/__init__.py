"""Which token may stand for which: sources of pairs, packed for a device.

Imports `runtime`, `config` and `data`. Start reading in `sources.py`; the
result is the table of `table.py`.
"""
