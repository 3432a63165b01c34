"""The terminal interface of exportdoctor: screens over the events of a run. The core finds it by an entry point."""
