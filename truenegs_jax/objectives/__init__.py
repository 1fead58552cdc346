"""Pure objectives: masking, true negatives, and losses as (sum, count)."""
