"""Position ids of a text with pictures in it, computed before the call by the model's own `get_rope_index`.

That method loops over pictures and token types by their values. The model takes its result as an input instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Named
from exportdoctor.shims.record import NotApplicable, Replacement, Shim

METHOD, INPUT = "get_rope_index", "position_ids"


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    owners = [module for module in call.module.modules() if hasattr(type(module), METHOD)]
    takes = INPUT in inspect.signature(call.module.forward).parameters
    if not owners or not takes or call.named.get(INPUT) is not None:
        raise NotApplicable(f"no submodule computes {INPUT} with {METHOD}")

    def compute(named: Named) -> dict[str, Any]:
        return {INPUT: _positions(owners[-1], named)}

    yield call.with_inputs(compute)


def makes_positions(model: Any) -> bool:
    """Whether a text's positions depend on the pictures in it: a submodule computes them from both."""
    return any(hasattr(type(module), METHOD) for module in model.modules())


def next_positions(model: Any, inputs: Named) -> Any:
    """int64 (3, batch, 1): where the token after these inputs of the model stands; each later one is one further on."""
    owners = [module for module in model.modules() if hasattr(type(module), METHOD)]
    if not owners:
        raise ValueError(f"{type(model).__name__} computes no positions of tokens: none of its modules has {METHOD}")
    positions = _positions(owners[-1], inputs)
    return (positions.amax((0, 2)) + 1)[None, :, None].expand(len(positions), -1, -1)


def _positions(owner: Any, named: Named) -> Any:
    """int64 (3, batch, sequence)."""
    import torch

    method = getattr(owner, METHOD)
    wanted = inspect.signature(method).parameters
    with torch.no_grad():
        positions, _ = method(**{name: value for name, value in named.items() if name in wanted})
    return positions


SHIM = Shim(
    id="precompute-position-ids",
    title="Computes position ids of text with images outside the model and passes them in",
    soundness="signature",
    enter=_enter,
    does=(
        "`get_rope_index` loops over the values of token types and grids, which are unknown during "
        "tracing. It is called before the export, and its position ids, of shape (3, batch, sequence), "
        "become an input of the program."
    ),
    cures=(
        Cure(
            kinds=(
                "data_dependent_value",
                "data_dependent_guard",
                "dynamic_dim_specialised",
                "unsupported_python",
                "attribute_mutation",
                "python_error",
            ),
            where=r"get_rope_index|compute_3d_position_ids|rope_deltas",
        ),
        Cure(kinds=("attribute_mutation",), message="rope_deltas"),
    ),
    needs={"torch": ">=2.8", "transformers": ">=4.53"},
    link="https://github.com/huggingface/transformers/pull/41992",
    retire="get_rope_index uses only tensor operations",
    rank=15,
    replaces=(
        Replacement(
            target="the inputs of the program",
            before="model(input_ids, attention_mask, pixel_values=pixel_values, image_grid_thw=image_grid_thw)\n",
            after=(
                "position_ids, _ = model.model.get_rope_index(input_ids, image_grid_thw=image_grid_thw, ...)\n"
                "model(\n    input_ids,\n    attention_mask,\n    position_ids,\n    pixel_values=pixel_values,\n"
                "    image_grid_thw=image_grid_thw,\n)\n"
            ),
        ),
    ),
)
