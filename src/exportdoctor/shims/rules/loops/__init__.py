"""Loops over rows, loops that a value ends, and loops over ranges."""
