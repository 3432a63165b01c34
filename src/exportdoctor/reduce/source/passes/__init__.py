"""The passes. `PASSES` are those of `reduce_source`, which work on any Python source, in the order in which they run.

The others know a repro script, whose last statement exports a module that is built from classes above it:
script_sizes, replace_with_ones, inline_modules, backward_slice and tidy.
"""

from __future__ import annotations

from exportdoctor.reduce.source.passes.arguments import (
    drop_arguments,
    drop_elements,
    drop_optional_parts,
    drop_paired_elements,
)
from exportdoctor.reduce.source.passes.blocks import narrow_zips, unroll_loops, unwrap_blocks
from exportdoctor.reduce.source.passes.constants import shrink_integers, simplify_literals
from exportdoctor.reduce.source.passes.expressions import simplify_expressions
from exportdoctor.reduce.source.passes.inlining import (
    inline_assignments,
    inline_functions,
    inline_imports,
    inline_lambdas,
)
from exportdoctor.reduce.source.passes.modules import adopt_bases, borrow_state, bypass_children, drop_methods
from exportdoctor.reduce.source.passes.parameters import drop_fields, drop_parameters
from exportdoctor.reduce.source.passes.statements import drop_names, drop_targets, thin_statements
from exportdoctor.reduce.source.sweep import SourcePass

__all__ = ["PASSES"]

PASSES: tuple[SourcePass, ...] = (
    narrow_zips,
    thin_statements,
    unwrap_blocks,
    unroll_loops,
    bypass_children,
    drop_methods,
    adopt_bases,
    borrow_state,
    drop_names,
    drop_parameters,
    drop_fields,
    drop_arguments,
    drop_optional_parts,
    drop_elements,
    drop_paired_elements,
    simplify_expressions,
    inline_functions,
    inline_lambdas,
    inline_assignments,
    inline_imports,
    drop_targets,
    simplify_literals,
    shrink_integers,
)
