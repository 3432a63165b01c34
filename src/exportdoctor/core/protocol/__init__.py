"""The protocols between clients and workers: one JSON object a line."""
