"""Rows: fixed-length training examples, prepared on disk and batched.

It may import `data.corpus`, `data.tokens` and what is below them. Start with
`prepare_rows.make_plan` for their making, with `batches` for their reading.
"""
