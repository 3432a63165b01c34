"""One part of a target: what to probe next, what is known of it, and the events that follow."""
