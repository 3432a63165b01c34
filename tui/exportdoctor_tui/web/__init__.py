"""The same interface in a browser on this machine."""
