"""Pure objectives: masking, true negatives, and losses as (sum, count).

Imports `runtime` and `config`. Start reading in `electra.electra_terms`.
"""
