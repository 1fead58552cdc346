"""Which token may stand for which: sources of pairs, packed for a device."""
