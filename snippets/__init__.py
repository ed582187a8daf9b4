"""Executable code shown in the answers: one module explains one question."""
