"""Enters each shim of other libraries once, to see which ones the installed versions have no place for.

Prints one JSON object: the reasons, by the shim's id. What a call lacks is no reason, since another call may have it.
"""

from __future__ import annotations

import contextlib
import json
import sys

import torch

from exportdoctor.core.exception_text import summary
from exportdoctor.shims import ExportCall, NotApplicable, Shim, Unfit, apply_shims, installed_versions, registry


def find_reason(shim: Shim) -> str:
    """Why it cannot be entered on these versions, empty where it can."""
    call = ExportCall(module=torch.nn.Identity(), args=(torch.ones(2),))
    try:
        with apply_shims((shim,), call):
            return ""
    except Unfit as reason:
        return str(reason).removeprefix(f"{shim.id}: ")
    except NotApplicable:
        return ""
    except Exception as error:
        return summary(error).partition(": ")[2]


def main() -> None:
    """Answer and end."""
    versions = installed_versions()
    fitting = [shim for shim in registry() if shim.provider not in ("own", "user") and shim.fits(versions) is None]
    with contextlib.redirect_stdout(sys.stderr):
        reasons = {shim.id: reason for shim in fitting if (reason := find_reason(shim))}
    print(json.dumps(reasons))


if __name__ == "__main__":
    main()
