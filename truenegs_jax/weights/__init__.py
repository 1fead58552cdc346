"""Reading, checking and exporting weights."""
