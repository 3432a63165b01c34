"""The pieces of the screens. Each takes a frozen value to draw and posts messages; none decides anything."""
