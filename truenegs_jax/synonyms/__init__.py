"""Which token may stand for which: sources of pairs, packed as a bit matrix."""
