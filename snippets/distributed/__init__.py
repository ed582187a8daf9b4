"""Distributed training: memory, parallelism and weight movement."""
