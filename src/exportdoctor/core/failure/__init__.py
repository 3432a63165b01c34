"""What a failure is: its kind, its messages and frames, whether it is the same as another, what is known of it."""
