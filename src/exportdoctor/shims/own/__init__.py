"""The project's own shims, one file for each or for a family. Those that follow from a rule are in shims/rules."""

from __future__ import annotations

from exportdoctor.shims.own import (
    block_diagonal_attention,
    cache_pytrees,
    check_as_assertion,
    dataclass_pytrees,
    eager_attention,
    frozen,
    grid_methods,
    known_values,
    masks_by_broadcast,
    max_pool_1d,
    modes,
    module_conversion,
    module_state,
    position_ids,
    sdpa_without_size_check,
    vision_geometry,
)
from exportdoctor.shims.rules import (
    branch,
    counted_loops,
    hoist,
    hoisted_reads,
    joined_split,
    scanned_loops,
    tensor_lengths,
)

OWN = (
    vision_geometry.SHIM,
    grid_methods.SHIM,
    position_ids.SHIM,
    hoist.SHIM,
    hoisted_reads.SHIM,
    block_diagonal_attention.SHIM,
    joined_split.SHIM,
    masks_by_broadcast.SHIM,
    sdpa_without_size_check.SHIM,
    check_as_assertion.SHIM,
    branch.SHIM,
    max_pool_1d.SHIM,
    module_conversion.SHIM,
    counted_loops.SHIM,
    scanned_loops.SHIM,
    tensor_lengths.SHIM,
    eager_attention.SHIM,
    cache_pytrees.SHIM,
    cache_pytrees.FIXED,
    dataclass_pytrees.SHIM,
    dataclass_pytrees.FIXED,
    module_state.SHIM,
    *modes.SHIMS,
    known_values.SHIM,
    frozen.SHIM,
)
