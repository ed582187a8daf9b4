"""Snippets on KL and entropy: what keeps a policy near its reference."""
