"""Fine-tunes a network on tasks with several seeds and reports the scores."""
