"""Known cures: reversible changes under which a failing export may pass. Importing this imports no torch.

`registry()` lists them, `candidates()` those that fit a failure; `applying()` holds some of them around an export.
"""

from __future__ import annotations

from exportdoctor.shims.composing import applying, in_order
from exportdoctor.shims.cure import Cure, Seen, seen_in_failure, seen_in_finding
from exportdoctor.shims.difference import difference
from exportdoctor.shims.export_call import ExportCall, ExportOptions, Inputs
from exportdoctor.shims.exporting import export_program
from exportdoctor.shims.of_part import call_of
from exportdoctor.shims.record import (
    SOUNDNESS,
    SOUNDNESS_MEANS,
    NotApplicable,
    Replacement,
    Shim,
    ShimTrouble,
    Soundness,
)
from exportdoctor.shims.registry import candidates, find, registry
from exportdoctor.shims.sources import installed_versions
from exportdoctor.shims.static_probe import DimensionMadeStatic, stopping_where_static

__all__ = [
    # the record
    "Shim", "Cure", "Replacement", "Soundness", "SOUNDNESS", "SOUNDNESS_MEANS",
    # finding one
    "registry", "find", "candidates", "Seen", "seen_in_failure", "seen_in_finding", "installed_versions", "difference",
    # applying some
    "stopping_where_static", "DimensionMadeStatic",
    "ExportCall", "ExportOptions", "Inputs", "call_of", "applying", "in_order", "export_program",
    "NotApplicable", "ShimTrouble",
]  # fmt: skip
