"""Cures that follow from a rule: what they change is found in the target or in a library, and named nowhere here."""
