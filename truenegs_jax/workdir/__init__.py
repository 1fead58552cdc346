"""workdir."""
