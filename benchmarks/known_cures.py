"""The four parts of a target exported once each with the right shims already known: what a diagnosis is compared with.

Prints JSON: seconds by part, and of the whole process so far.
"""

from __future__ import annotations

import json
import sys
import time

from exportdoctor.core.records.target import TargetRef
from exportdoctor.shims import apply_shims, call_for_part, export_program, find, order_shims
from exportdoctor.targets import build, resolve

SHIMS = {
    "vision": ("precompute-grid", "block-diagonal-attention"),
    "text": (),
    "decode": (),
    "full": ("precompute-grid", "precompute-position-ids", "block-diagonal-attention"),
}


def main() -> None:
    """Build, then export each part, in one process and one thread, as a script would."""
    began = time.perf_counter()
    built = build(resolve(TargetRef(ref=sys.argv[1])))
    seconds = {"build": time.perf_counter() - began}
    for name, shims in SHIMS.items():
        before = time.perf_counter()
        part = built.part(name)
        with part.prepare(), apply_shims(order_shims([find(shim) for shim in shims]), call_for_part(part)) as given:
            export_program(given)
        seconds[name] = time.perf_counter() - before
    print(json.dumps({name: round(value, 1) for name, value in seconds.items()}))


main()
