"""Known cures: reversible changes under which a failing export may pass. Importing this imports no torch.

`registry()` lists them, `candidates()` those that fit a failure; `apply_shims()` holds some of them around an export.
"""

from __future__ import annotations

from exportdoctor.shims.composition import apply_shims, conflicts_with, find_conflict, order_shims
from exportdoctor.shims.cure_pattern import Cure, FailureView, seen_in_failure
from exportdoctor.shims.export_call import ExportCall, ExportOptions, Inputs, call_for_part
from exportdoctor.shims.record import (
    SOUNDNESS,
    SOUNDNESS_MEANS,
    NotApplicable,
    Replacement,
    Shim,
    ShimTrouble,
    Soundness,
    Unfit,
)
from exportdoctor.shims.registry import candidates, find, installed_versions, load_package_shims, registry
from exportdoctor.shims.torch_export import export_program

__all__ = [
    # the record
    "Shim", "Cure", "Replacement", "Soundness", "SOUNDNESS", "SOUNDNESS_MEANS",
    # finding one
    "registry", "load_package_shims", "find", "candidates", "FailureView", "seen_in_failure", "installed_versions",
    # applying some
    "ExportCall", "ExportOptions", "Inputs", "call_for_part", "apply_shims", "order_shims", "export_program",
    "conflicts_with", "find_conflict", "NotApplicable", "Unfit", "ShimTrouble",
]  # fmt: skip
