"""The four parts of a target exported once each with the right shims already known: what a diagnosis is compared with.

Prints JSON: seconds by part, and of the whole process so far.
"""

from __future__ import annotations

import json
import sys
import time

from exportdoctor.core.target import TargetRef
from exportdoctor.shims import applying, call_of, export_program, find, in_order
from exportdoctor.targets import resolve

SHIMS = {
    "vision": ("precompute-grid", "block-diagonal-attention"),
    "text": (),
    "decode": (),
    "full": ("precompute-grid", "precompute-position-ids", "block-diagonal-attention"),
}


def main() -> None:
    """Build, then export each part, in one process and one thread, as a script would."""
    began = time.perf_counter()
    built = resolve(TargetRef(ref=sys.argv[1])).build()
    seconds = {"build": time.perf_counter() - began}
    for name, shims in SHIMS.items():
        before = time.perf_counter()
        part = built.part(name)
        with part.prepare(), applying(in_order([find(shim) for shim in shims]), call_of(part)) as given:
            export_program(given)
        seconds[name] = time.perf_counter() - before
    print(json.dumps({name: round(value, 1) for name, value in seconds.items()}))


main()
