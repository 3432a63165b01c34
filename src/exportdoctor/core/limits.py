"""The limits of time and memory that exportdoctor sets by itself, in seconds and MiB; process/ enforces them."""

from __future__ import annotations

# An attempt of a scan, unless the user says how long it may take
SHORTEST_ATTEMPT = 60.0
FORWARDS_PER_ATTEMPT = 60.0
"""Until a first attempt has finished, the limit in eager forwards."""
SHORT_FORWARDS_PER_ATTEMPT = 300.0
LONGEST_OF_SHORT = 600.0
"""What a short forward gets: with dynamic sizes some models (Qwen3-Next) take sixty forwards and more."""
LONGEST_ATTEMPTS_PER_ATTEMPT = 10.0
"""Afterwards, the limit in durations of the longest attempt that has finished."""
UNMEASURED_ATTEMPT = 600.0
"""An attempt that begins before anything of its target was measured."""
PATIENCE = 5.0
"""How much longer an attempt may take on the clock as long as its processor time is within the limit."""

# Importing and building a target, and capturing one part of it: the target's code runs
BUILD = 600.0
"""Of processor time."""
OTHER_INPUTS = 4.0
"""How many times as long a part may take, once its example has run, for all other inputs together."""
BUILD_SHARE = 0.8
"""Of the memory that is available when it begins."""
IDLE_BUILD = 120.0
"""Reading and downloading use the processor a little; what does not use it for so long hangs."""

# Importing a file with shims, before anything runs
SHIM_FILE = 60.0
IDLE_SHIM_FILE = 20.0

# What hardly uses the processor for so long hangs
IDLE_CANDIDATE = 1.2
"""In a forked copy of a warm process, which has nothing to load."""
IDLE_ATTEMPT = 5.0

# A candidate script of a repro
CANDIDATE_SECONDS = 20.0
CANDIDATE_MB = 1000.0
SHORTEST_CANDIDATE = 8.0

# A finished repro in a fresh interpreter, which has torch to import
SCRIPT_SECONDS = 120.0
SCRIPT_MB = 1500.0

# Programs that are asked for one thing
INTERPRETER_SECONDS = 60.0
"""What another interpreter has installed."""
ENVIRONMENT_SECONDS = 60.0
"""torch.utils.collect_env, for the folder of an issue."""
SHIM_LIST_SECONDS = 120.0
"""The list of all shims, for the terminal interface."""
HUB_SECONDS = 5.0
"""Whether the hub answers at all."""

INTERRUPTED = 10.0
"""What an interrupted command gets to save what it has."""

# What a process prints
LOG_MB = 32.0
