"""Scores minimal pairs: grammar without fine-tuning.

It may import what pre-trains and reports, but no other task. Start reading in
`run`; pairs and scores are in `pretrain/minimal_pairs.py`.
"""
