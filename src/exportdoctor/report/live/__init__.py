"""How far a scan is, while it runs: nothing, lines, or a display that redraws itself."""
