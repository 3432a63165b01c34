"""Searches for the smallest thing that still fails: no I/O, no torch, no model.

A search is a generator that yields candidates and receives verdicts (search_protocol.py); a driver runs it (drive.py)
against an oracle that judges one candidate at a time or several (parallel_oracle.py).

- which items of a set are needed: `ddmin`
- how short a script may be: `reduce_source`
"""

from __future__ import annotations

from exportdoctor.reduce.ddmin import ddmin
from exportdoctor.reduce.drive import SearchLimits, drive, steps
from exportdoctor.reduce.parallel_oracle import ParallelOracle
from exportdoctor.reduce.search_protocol import Pass, Search, lift, until_no_progress
from exportdoctor.reduce.source import reduce_source, source_distance, source_size
from exportdoctor.reduce.verdict import Ended, JudgedCandidate, NotInteresting, SearchResult, Verdict

__all__ = [
    # searches
    "ddmin",
    "reduce_source",
    "source_distance",
    "source_size",
    # building searches
    "Pass",
    "Search",
    "lift",
    "until_no_progress",
    # drivers
    "ParallelOracle",
    "SearchLimits",
    "drive",
    "steps",
    # verdicts and results
    "Ended",
    "NotInteresting",
    "SearchResult",
    "JudgedCandidate",
    "Verdict",
]
