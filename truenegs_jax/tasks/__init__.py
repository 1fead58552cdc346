"""Tasks to fine-tune on: reading them, cutting them to ids, batching; numpy."""
