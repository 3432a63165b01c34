"""Writes an atlas as Markdown and as one HTML page, and compares it with an earlier one."""
