"""Sizes and numbers that Python would take for fixed ones."""
