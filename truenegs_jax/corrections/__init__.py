"""Measures how often hard correction applies: table 2 of the paper.

It may import what pre-trains and reports, but no other task. Start reading in
`run`.
"""
