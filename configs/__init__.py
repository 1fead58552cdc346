"""What to run: one file per experiment, defaults in `common`."""
