"""All hooks for the installed torch: records for `exportdoctor version --internals`, and a line for a scan's notes."""

from __future__ import annotations

from exportdoctor.torch_internals import (
    dynamo_frames,
    example_values,
    fake_cuda,
    fake_tensors,
    graph_modules,
    kernel_registry,
    loop_operators,
    onnx_library,
    program_checks,
    pytree_registry,
    shape_env,
    tensor_subclasses,
    tracer_frames,
    tracing_modes,
    trees,
)
from exportdoctor.torch_internals.hook import Hook

_ROOMS = (
    fake_tensors, shape_env, program_checks, tracer_frames, dynamo_frames, trees, pytree_registry, graph_modules,
    onnx_library, tracing_modes, fake_cuda, loop_operators, tensor_subclasses,
    example_values, kernel_registry,
)  # fmt: skip

HOOKS: tuple[Hook, ...] = tuple(hook for room in _ROOMS for hook in room.HOOKS)


def hook_records() -> list[dict[str, object]]:
    """One record for each hook, as JSON has it."""
    return [
        {
            "id": hook.id,
            "supported": hook.is_supported(),
            "api": hook.api,
            "used_for": hook.used_for,
            "lost": hook.lost,
            "seen_on": list(hook.seen_on),
            "essential": hook.essential,
        }
        for hook in HOOKS
    ]


def missing_hooks() -> tuple[Hook, ...]:
    """The hooks that a scan lacks with the installed torch."""
    return tuple(hook for hook in HOOKS if not hook.imports_onnx and not hook.is_supported())
