"""What the tabs beside the tree say, each a pure function from a Selection to text with styles."""
