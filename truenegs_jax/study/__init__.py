"""Compares recipes: trains, fine-tunes and measures each with several seeds.

It starts other tasks as processes, so it may import all folders but the verbs.
Start reading in `run`; `parts` lists processes, `tables` shows their scores.
"""
