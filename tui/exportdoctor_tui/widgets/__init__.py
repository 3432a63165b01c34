"""The widgets of the screens. Each draws a frozen value and posts messages."""
