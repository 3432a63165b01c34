"""Makes the minimal script of a finding: drafted from the model's code, reduced while it shows the same bug, verified.

Imports no torch: drafts come from one process of worker/, another one runs the candidates, and the result is verified
in a fresh interpreter.
"""
