"""The table of verbs. A new verb is a module with a click command named after it, and a row here.

The help line stands here so that `exportdoctor --help` imports none of them.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """`module` below exportdoctor.cli has a click command called `command`."""

    name: str
    module: str
    command: str
    help: str


VERBS = (
    Verb("scan", "scan", "scan", "Find which submodules of a target cannot be exported, and why."),
    Verb("report", "report", "report", "Tell a run again: as text, Markdown, HTML, JSON, JUnit or SARIF."),
    Verb("repro", "repro", "repro", "Make and verify the minimal script of a finding."),
    Verb("runs", "runs", "runs", "List the runs."),
    Verb("known", "known", "known", "Search the known upstream issues."),
    Verb("shims", "shims", "shims", "List the known cures, show one, try some on a target."),
    Verb("export", "export", "export", "Write a part as .pt2 or .onnx, cured and proved against eager."),
    Verb("compare", "compare", "compare", "Tell what changed from one run to another."),
    Verb("tui", "tui", "tui", "Explore a run in the terminal."),
    Verb("completion", "completion", "completion", "Print the completion script for a shell."),
)
