"""The table of verbs. A verb is a module here with a click command of the same name, and a row here.

The help lines are here so that `exportdoctor --help` imports none of the modules.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """The module and command `name`, and its line in `exportdoctor --help`."""

    name: str
    help: str


VERBS = (
    Verb("scan", "Find which submodules of a model fail to export, and why."),
    Verb("report", "Print a run as text, Markdown, HTML, JSON, SARIF and more."),
    Verb("explain", "Explain a finding or kind of failure, with rewrites that work."),
    Verb("repro", "Make a minimal script that reproduces a finding."),
    Verb("sweep", "Scan many models on a Dask cluster, and write an atlas."),
    Verb("runs", "List the runs."),
    Verb("known", "Search the known upstream issues."),
    Verb("shims", "List and show shims, or try some on a model."),
    Verb("export", "Export a part to .pt2 or .onnx with shims, and verify the file."),
    Verb("numbers", "Find where the numbers stop being those of eager."),
    Verb("domain", "Find the sizes at which an exported program is right."),
    Verb("sensitivity", "Find the layers that cannot bear low precision."),
    Verb("compare", "Show what changed between two runs."),
    Verb("lanes", "Make, list and delete environments with other versions."),
    Verb("matrix", "Ask the same on several versions of transformers or torch."),
    Verb("bisect", "Find the release with which a failure came or went."),
    Verb("retest", "Ask the findings of a run again on the newest releases."),
    Verb("parts", "List the parts of a model."),
    Verb("inputs", "Print the inputs that are made for a part, as code."),
    Verb("schema", "Print the JSON schema of report.json, or of another answer."),
    Verb("mcp", "Serve scan, explain, repro and export as tools to an agent."),
    Verb("tui", "Browse a run in the terminal."),
    Verb("version", "Show versions, and the private torch APIs in use."),
    Verb("completion", "Print the completion script for a shell."),
)
