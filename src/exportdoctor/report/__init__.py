"""Renders a Report as text, Markdown, JSON (all of it, or in brief), HTML, JUnit, SARIF or annotations of GitHub.

The sentences are in `wording`, the folding of the module tree in `folded_tree`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from exportdoctor.core.errors import UsageError
from exportdoctor.core.run.report import Report
from exportdoctor.report.canvas import Style

if TYPE_CHECKING:
    from exportdoctor.report.page.run_material import RunMaterial

FORMS = {
    "text": "plain_text",
    "md": "markdown",
    "html": "page.html_page",
    "json": "json_file",
    "brief": "brief",
    "junit": "junit",
    "sarif": "sarif",
    "github": "github_annotations",
}
"""The name of each format, and the module here that writes it."""


def render(
    report: Report,
    form: str = "text",
    style: Style | None = None,
    *,
    material: RunMaterial | None = None,
    known: frozenset[str] = frozenset(),
) -> str:
    """`report` in one of `FORMS`, ending with a newline. `style` is used by text only, `material` by html only, and
    `known`, the findings that a baseline has, by github, junit and sarif, which call them no failures.

    Raises UsageError for an unknown format.
    """
    if form not in FORMS:
        raise UsageError(f"unknown format {form!r}", hint=f"Formats: {', '.join(FORMS)}")
    module = importlib.import_module(f"exportdoctor.report.{FORMS[form]}")
    further: tuple[object, ...] = {
        "text": (style or Style(),), "html": (material,), **dict.fromkeys(("github", "junit", "sarif"), (known,)),
    }.get(form, ())  # fmt: skip
    text: str = module.render(report, *further)
    return text
