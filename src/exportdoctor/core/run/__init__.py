"""A run as its events, the state that follows from them, and the report."""
