"""Workers as an executor of probes."""
