"""Candidate scripts: runs them, judges them, and reduces the first that shows the failure."""
