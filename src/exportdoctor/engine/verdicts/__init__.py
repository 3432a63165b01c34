"""From outcomes to verdicts, and from failing modules to findings."""
