"""The options of core/scan_options.py as options of click commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from exportdoctor.cli.complete_words import complete_modules
from exportdoctor.cli.options import FiniteRange
from exportdoctor.core.scan_options import DEFAULTS, OPTIONS

_COMPLETED = {"modules": complete_modules}

F = TypeVar("F", bound=Callable[..., Any])


def scan_option(name: str) -> Callable[[F], F]:
    """The option for a field of ScanOptions."""
    spec, default = OPTIONS[name], DEFAULTS[name]
    given: dict[str, Any] = {"help": spec.help, "metavar": spec.metavar or None}
    if isinstance(default, bool):
        given["is_flag"] = True
    elif isinstance(default, tuple):
        given["multiple"] = True
    elif isinstance(default, str):
        given |= {"default": default, "show_default": True}
    else:  # a limit
        given["type"] = click.IntRange(min=1) if isinstance(default, int) else FiniteRange(min=0, min_open=True)
    if spec.choices:
        given["type"] = click.Choice(spec.choices)
    if name in _COMPLETED:
        given["shell_complete"] = _COMPLETED[name]
    return click.option(spec.flag, name, **given)


def add_scan_options(command: F) -> F:
    """Add the option of every field of ScanOptions, in the order of the table."""
    for name in reversed(list(OPTIONS)):
        command = scan_option(name)(command)
    return command


def pop_scan_options(given: dict[str, Any], names: Iterable[str] = OPTIONS) -> dict[str, Any]:
    """Take the scan's options of these names out of what click parsed; returns those that were given, as fields of
    ScanOptions."""
    values = {name: given.pop(name) for name in names}
    return {
        name: not DEFAULTS[name] if value is True else value
        for name, value in values.items()
        if value is not None and value is not False and value != ()
    }
