"""What was learned: held-out verdicts, corrections, fills and curves."""
