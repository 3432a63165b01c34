"""Submodules and tensors whose names are keywords of Python, such as `in`: torch.fx writes them as attributes into the
code of a program, which Python cannot read."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim


def keyword_names(program: Any) -> dict[str, str]:
    """The qualified names of a program's parameters, buffers and constants that have a keyword in them, each with
    another one that the program does not have."""
    signature = program.graph_signature
    specs = (*signature.input_specs, *signature.output_specs)
    known = dict.fromkeys([*program.state_dict, *program.constants, *(one.target for one in specs if one.target)])
    found: dict[str, str] = {}
    for name in known:
        parts = name.split(".")
        if any(map(keyword.iskeyword, parts)):
            plain = ".".join(_without_keyword(part) for part in parts)
            while plain in known or plain in found.values():
                plain += "_"
            found[name] = plain
    return found


def _without_keyword(part: str) -> str:
    return f"{part}_" if keyword.iskeyword(part) else part


def without_keywords(program: Any) -> Any:
    """The program with other names in their place, changed in place. Raises NotApplicable where it has none."""
    names = keyword_names(program)
    if not names:
        raise NotApplicable("no parameter, buffer or submodule has a keyword of Python as its name")
    signature = program.graph_signature
    for spec in (*signature.input_specs, *signature.output_specs):
        spec.target = names.get(spec.target, spec.target)
    for held in (program.state_dict, program.constants):
        for name in [name for name in held if name in names]:
            held[names[name]] = held.pop(name)
    return program


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    yield replace(call, passes=(*call.passes, without_keywords))


SHIM = Shim(
    id="keyword-names",
    title="Gives parameters and buffers other names where theirs are keywords of Python",
    soundness="exact",
    enter=_enter,
    does=(
        "The program that torch.export makes of `nn.ModuleDict({'in': ..., 'out': ...})` cannot become a module: "
        "`self.in.weight` is no Python. In the program, and in its state dict, `in` is `in_` here; the model keeps its "
        "names."
    ),
    cures=(
        Cure(kinds=("numbers", "translate"), message=r"SyntaxError"),
        Cure(kinds=("numbers",), message=r"is a keyword of Python"),
    ),
    link="https://docs.python.org/3/reference/lexical_analysis.html#keywords",
    retire="torch.fx writes such attributes by getattr",
    rank=10,
    replaces=(
        Replacement(
            target="the names of submodules",
            before="self.proj = nn.ModuleDict({'in': nn.Linear(4, 4), 'out': nn.Linear(4, 4)})\n",
            after="self.proj = nn.ModuleDict({'in_': nn.Linear(4, 4), 'out': nn.Linear(4, 4)})\n",
        ),
    ),
)
