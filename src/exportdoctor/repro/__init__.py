"""Makes the minimal script of a finding: harvested, reduced while it stays the same bug, verified in a fresh process.

The only place that decides what "the same bug" means for a script that no longer has the model's names in it. It
imports no torch: questions go to processes of worker/ (harvest, bench) and to a fresh interpreter.
"""
