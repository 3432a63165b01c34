"""How to search for the smallest thing that still fails, and nothing else: no I/O, no torch, no model.

A search is a generator that yields candidates and receives verdicts (search.py); a driver runs it against
whoever can judge (drive.py, drive_parallel.py). So one piece of code serves the serial run, the parallel one,
the resumed one and the tests, and all four find the same.

- what to remove: `ddmin`, `minimal_sets`
- where something begins: `bisect`
- how small a value may be: `shrink_int`, `shrink_shape`, `shrink_choice`
- how short a script may be: `reduce_source`
"""

from __future__ import annotations

from exportdoctor.reduce.bisect import Bisected, bisect
from exportdoctor.reduce.ddmin import ddmin
from exportdoctor.reduce.drive import Terms, drive, replay, steps
from exportdoctor.reduce.drive_parallel import InFlight, drive_parallel
from exportdoctor.reduce.search import Pass, Search, lifted, until_no_progress
from exportdoctor.reduce.shrink import shrink_choice, shrink_int, shrink_shape
from exportdoctor.reduce.source import reduce_source, source_distance, source_size
from exportdoctor.reduce.subsets import minimal_sets, minimise_set
from exportdoctor.reduce.verdict import Ended, Flaky, NotInteresting, Reduced, Step, Verdict

__all__ = [
    # searches
    "Bisected",
    "bisect",
    "ddmin",
    "minimal_sets",
    "minimise_set",
    "reduce_source",
    "shrink_choice",
    "shrink_int",
    "shrink_shape",
    "source_distance",
    "source_size",
    # building searches
    "Pass",
    "Search",
    "lifted",
    "until_no_progress",
    # drivers
    "InFlight",
    "Terms",
    "drive",
    "drive_parallel",
    "replay",
    "steps",
    # verdicts and results
    "Ended",
    "Flaky",
    "NotInteresting",
    "Reduced",
    "Step",
    "Verdict",
]
