"""Worker processes from outside: to start one, to speak with it, to keep it within its limits, and to end it."""
