"""Renders a Report as text, Markdown, JSON, HTML, JUnit or SARIF.

The sentences are in `wording`, the folding of the module tree in `folded_tree`.
"""

from __future__ import annotations

import importlib

from exportdoctor.core.errors import UsageError
from exportdoctor.core.run.report import Report
from exportdoctor.report.canvas import Style

FORMS = {
    "text": "plain_text",
    "md": "markdown",
    "html": "html_page",
    "json": "json_file",
    "junit": "junit",
    "sarif": "sarif",
}
"""The name of each format, and the module here that writes it."""


def render(report: Report, form: str = "text", style: Style | None = None) -> str:
    """`report` in one of `FORMS`, ending with a newline. `style` is used by text only.

    Raises UsageError for an unknown format.
    """
    if form not in FORMS:
        raise UsageError(f"unknown format {form!r}", hint=f"Formats: {', '.join(FORMS)}")
    module = importlib.import_module(f"exportdoctor.report.{FORMS[form]}")
    text: str = module.render(report, style or Style()) if form == "text" else module.render(report)
    return text
