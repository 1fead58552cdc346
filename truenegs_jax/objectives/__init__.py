"""Pure objectives: masking, true negatives, and losses as (sum, count).

Imports config and runtime only. Start reading in `electra.electra_terms`.
"""
