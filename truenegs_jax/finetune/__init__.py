"""Fine-tuning: a task, a network with its head, several seeds, their scores."""
