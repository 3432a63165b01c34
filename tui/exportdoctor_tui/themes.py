"""The two themes. green passes, red fails, yellow is cured, violet died or was killed."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="exportdoctor-dark",
    primary="#6ea8fe",
    secondary="#c792ea",
    accent="#7fd1e0",
    foreground="#d6dbe5",
    background="#11141a",
    surface="#171b23",
    panel="#222834",
    success="#8fce7e",
    warning="#e6c072",
    error="#f4727f",
    dark=True,
    variables={"footer-key-foreground": "#7fd1e0", "border": "#3a4252"},
)
LIGHT = Theme(
    name="exportdoctor-light",
    primary="#1f5fbf",
    secondary="#7a3e9d",
    accent="#0b6e82",
    foreground="#1c2430",
    background="#fafafa",
    surface="#f2f3f5",
    panel="#e3e6ea",
    success="#2c7a2c",
    warning="#8a5a00",
    error="#b8202f",
    dark=False,
    variables={"footer-key-foreground": "#0b6e82", "border": "#b9c0ca"},
)
THEMES = (DARK, LIGHT)
