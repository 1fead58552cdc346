"""The task "pretrain"."""
