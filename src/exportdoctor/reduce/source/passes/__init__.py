"""The passes. `PASSES` are those of `reduce_source`, which work on any Python source, in the order in which they run.

The others know a repro script, whose last statement exports a module that is built from classes above it:
script_sizes, leaps, inline_modules, backward_slice and tidy.
"""

from __future__ import annotations

from exportdoctor.reduce.source.passes import (
    arguments,
    blocks,
    constants,
    expressions,
    inlining,
    modules,
    parameters,
    statements,
)
from exportdoctor.reduce.source.sweep import SourcePass

__all__ = ["PASSES"]

PASSES: tuple[SourcePass, ...] = (
    inlining.inline_attributes,
    blocks.narrow_zips,
    statements.thin_statements,
    blocks.unwrap_blocks,
    blocks.unroll_loops,
    modules.bypass_children,
    modules.drop_methods,
    modules.adopt_bases,
    modules.borrow_state,
    statements.drop_names,
    parameters.drop_parameters,
    parameters.drop_fields,
    arguments.drop_arguments,
    arguments.drop_optional_parts,
    arguments.drop_elements,
    arguments.drop_paired_elements,
    expressions.simplify_expressions,
    inlining.inline_functions,
    inlining.inline_lambdas,
    inlining.inline_assignments,
    inlining.inline_imports,
    statements.drop_targets,
    constants.simplify_literals,
    constants.shrink_integers,
)
