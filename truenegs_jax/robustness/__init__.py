"""Measures robustness: scores of a fine-tuned model on transformed texts.

It may import `finetune/`, whose evaluator it uses, and what is below. Start
reading in `run`; `transformation` is what both changes of texts share.
"""
