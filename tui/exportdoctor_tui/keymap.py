"""All keys and what each does. Bindings, footer, help and the key map of docs/tui.md are made from these tables.

A row's `action` is Textual's: `zoom` calls the method `action_zoom` of the screen, widget or application it belongs to.
"""

from __future__ import annotations

from typing import NamedTuple

from textual.binding import Binding, BindingType


class Key(NamedTuple):
    """`keys`: Textual's names, separated by commas; `footer`: the word in the footer, empty = not shown there."""

    keys: str
    action: str
    what: str
    footer: str = ""
    shown: str = ""


APP = (
    Key("question_mark,f1", "help", "Help for this screen", "Help", "?"),
    Key("q,ctrl+q", "leave", "Quit", "Quit", "q"),
    Key("ctrl+p", "command_palette", "Command palette: everything, by name", "Palette", "^p"),
    Key("ctrl+t", "switch_theme", "Light or dark", "", "^t"),
    Key("ctrl+s", "save_svg", "Save the screen as SVG in this folder", "", "^s"),
)
RUN_LIST = (
    Key("enter", "select", "Open the run", "Open", "enter"),
    Key("down,j", "cursor_down", "Down", "", "↓ j"),
    Key("up,k", "cursor_up", "Up", "", "↑ k"),
    Key("home,g", "first", "First run", "", "g"),
    Key("end,G", "last", "Last run", "", "G"),
)
RUNS = (
    Key("r", "refresh", "Refresh the list", "Refresh", "r"),
    Key("slash", "filter", "Filter by target, state, part or run", "Filter", "/"),
    Key("d", "delete", "Delete the run, with its logs and scripts", "Delete", "d"),
    Key("c", "copy_command", "Copy the command that makes a run", "", "c"),
    Key("escape", "back", "Drop the filter", "", "esc"),
)
RUN = (
    Key("n", "failure(1)", "Next failure, in any part, by the numbers of the findings", "Next", "n"),
    Key("N,p", "failure(-1)", "Previous failure", "", "N"),
    Key("f", "findings", "List of findings", "Findings", "f"),
    Key("slash", "filter", "Filter by name, class, verdict or finding; in a page: search it", "Filter", "/"),
    Key("left_square_bracket", "part(-1)", "Previous part", "", "["),
    Key("right_square_bracket", "part(1)", "Next part", "", "]"),
    Key("tab", "app.focus_next", "Go to the other pane", "", "tab"),
    Key("z", "zoom", "Zoom this pane, or show both", "", "z"),
    Key("1", "tab('story')", "Story: what, where, why, what next", "", "1"),
    Key("2", "tab('stack')", "Stack, with the source of each frame", "", "2"),
    Key("3", "tab('inputs')", "Captured inputs", "", "3"),
    Key("4", "tab('graph')", "Last operator, and where symbols were created", "", "4"),
    Key("5", "tab('cure')", "Shims tried, before and after", "", "5"),
    Key("6", "tab('repro')", "Repro script", "", "6"),
    Key("7", "tab('log')", "Log of the attempt", "", "7"),
    Key("8", "tab('explain')", "Why it fails, and rewrites that work", "", "8"),
    Key("9", "tab('numbers')", "Numbers of the part, stage by stage", "", "9"),
    Key("t", "torch_frames", "Show or hide frames of torch", "", "t"),
    Key("e", "edit", "Open the source, script or log in $EDITOR", "", "e"),
    Key("y", "copy", "Copy: Markdown, command, script, name", "Copy", "y"),
    Key("a", "actions", "Actions: repro, try shims, export, rescan, compare, …", "Actions", "a"),
    Key("x", "cancel", "Stop the running command", "", "x"),
    Key("o", "job_log", "Output of the command", "", "o"),
    Key("escape", "back", "Back: clear the filter, unzoom, tree", "", "esc"),
    Key("backspace", "runs", "Back to the list of runs", "", "bksp"),
)
TREE = (
    Key("down,j", "move(1)", "Down", "", "↓ j"),
    Key("up,k", "move(-1)", "Up", "", "↑ k"),
    Key("pagedown", "page(1)", "Page down", "", "pgdn"),
    Key("pageup", "page(-1)", "Page up", "", "pgup"),
    Key("home,g", "edge(False)", "First line", "", "g"),
    Key("end,G", "edge(True)", "Last line", "", "G"),
    Key("space", "request('toggle')", "Open or close", "", "space"),
    Key("right,l", "request('open')", "Open, or go inside", "", "→ l"),
    Key("left,h", "request('close')", "Close, or go to the parent", "", "← h"),
    Key("u", "request('unfold')", "Identical modules one by one, or as one line", "", "u"),
    Key("plus", "screen.open_all", "Open everything", "", "+"),
    Key("minus", "screen.open_failing", "Open failing paths only", "", "-"),
    Key("enter", "request('read')", "Read the finding", "Read", "enter"),
)
LIST = (
    Key("down,j", "cursor_down", "Down", "", "↓ j"),
    Key("up,k", "cursor_up", "Up", "", "↑ k"),
)
STACK = (
    Key("down,j", "cursor_down", "Inner frame", "Frame", "↓ j"),
    Key("up,k", "cursor_up", "Outer frame", "", "↑ k"),
    Key("e", "screen.edit", "Open the frame in $EDITOR", "Edit", "e"),
    Key("t", "screen.torch_frames", "Show or hide frames of torch", "Torch", "t"),
    Key("escape", "screen.back", "Back to the tree", "Tree", "esc"),
)
PAGE = (
    Key("down,j", "scroll_down", "Scroll down", "Scroll", "↓ j"),
    Key("up,k", "scroll_up", "Scroll up", "", "↑ k"),
    Key("home,g", "scroll_home", "Start", "", "g"),
    Key("end,G", "scroll_end", "End", "", "G"),
    Key("slash", "screen.filter", "Search this page", "Search", "/"),
    Key("escape", "screen.back", "Back to the tree", "Tree", "esc"),
)
FILTER = (
    Key("enter", "submit", "Keep the filter; in a page: the next match", "Keep, or next match", "enter"),
    Key("escape", "screen.back", "Drop it", "Drop", "esc"),
)
TABLES: dict[str, tuple[Key, ...]] = {
    "Everywhere": APP,
    "List of runs": RUN_LIST,
    "Runs": RUNS,
    "Run": RUN,
    "Tree of submodules": TREE,
    "Page": PAGE,
    "Stack": STACK,
    "Filter and search": FILTER,
}


def bindings(keys: tuple[Key, ...]) -> list[BindingType]:
    """The bindings of a table."""
    return [
        Binding(key.keys, key.action, key.footer or key.what, show=bool(key.footer), key_display=key.shown)
        for key in keys
    ]
