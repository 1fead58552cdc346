"""GLUE, SQuAD and user tasks: reading, encoding, batching and scoring."""
