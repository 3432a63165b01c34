"""Rewrites of a user's own lines: found in the source text, and held in memory while they are tried."""
