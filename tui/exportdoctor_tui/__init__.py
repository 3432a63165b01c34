"""The terminal interface of exportdoctor: screens over the events of a run. Found by the core through an entry point."""
