"""Readers of weights in every format that `config.init` accepts."""
