"""A self-contained script, written from the source and the values of a target that runs."""
