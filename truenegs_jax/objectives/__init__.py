"""Pure objectives: masking, true negatives, and losses as (sum, count).

Imports models, config and runtime. Start reading in `electra.electra_terms`.
"""
