"""Measures hard corrections: rates (table 2 of the paper) and cases (figure 3).

It may import what trains and reports, but no other task. Start reading in
`run`, the task; pre-training uses `predict_slots` and `findings`.
"""
