"""Measures robustness: scores of a fine-tuned model on transformed texts.

It uses the evaluator of `finetune/` and the sources of `synonyms/`. Start
reading in `run`; `transformation` is what all changes of texts share.
"""
