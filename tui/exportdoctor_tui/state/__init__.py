"""What the screens show, as values: a run at one moment, its outline, where the user is in it. Nothing here draws."""
