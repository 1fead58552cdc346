"""Fine-tunes a network on tasks with several seeds and reports the scores.

It may import `train/`, `tasks/`, `weights/` and what is below them. Start
reading in `run`; `start` opens the networks, and those that robustness scores.
"""
