"""Sentences about trying shims on a part."""

from __future__ import annotations

from exportdoctor.core.outcome import Agreement


def agreement_line(row: Agreement) -> str:
    """How the exported program compares with eager on one set of inputs."""
    result = row.trouble or f"max |Δ| {row.max_abs:.1e}, tolerance {row.tolerance:.0e}"
    verb = "refuses" if row.refused else "matches eager on" if row.holds else "differs from eager on"
    return f"{verb} {row.inputs}: {result}"
