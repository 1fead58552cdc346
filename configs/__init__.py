"""Configs, one file per experiment; their defaults are in `common`."""
