"""What processes, files and reports have in common: probes, outcomes, events and the report. Imports no torch."""
