"""Targets named `file.py:factory`, and modules in memory."""
