"""What processes, files and reports have in common: the target, probes and outcomes. Imports no torch."""
