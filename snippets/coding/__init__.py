"""Code one is asked to write in the interview."""
