"""Weights in and out: Hugging Face's formats, runs to start from, exports.

Imports data, models, tasks, workdir and what lies below them. Start reading in
`find.Weights`, then `load.load_params` (in) and `export_model` (out).
"""
