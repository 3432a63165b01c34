"""The search for the shims with which a part exports."""
