"""SDPA takes a bool as `is_causal`, and a condition on dynamic sizes is a symbol. Here it becomes part of a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute, patch_item
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import user_functions


def _with_mask(attend: Callable[..., Any]) -> Callable[..., Any]:
    """`scaled_dot_product_attention` of query (..., L, E) and key (..., S, E), which is given a mask, bool (L, S), in
    place of a symbolic flag."""
    import torch

    def attend_by_mask(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: Any = False,
        **options: Any,
    ) -> Any:
        if isinstance(is_causal, torch.SymBool) and attn_mask is None:
            earlier = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
            condition: Any = is_causal
            attn_mask, is_causal = earlier | ~torch.full((), condition, device=query.device), False
        return attend(query, key, value, attn_mask, dropout_p, is_causal, **options)

    return attend_by_mask


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    from torch.nn import functional

    plain = functional.scaled_dot_product_attention
    other = _with_mask(plain)
    namespaces = {
        id(one.__globals__): one.__globals__ for one in user_functions(call, lambda code: bool(code.co_names))
    }
    with ExitStack() as stack:
        stack.enter_context(patch_attribute(functional, plain.__name__, other))
        for names in namespaces.values():
            for name in [name for name, value in names.items() if value is plain]:
                stack.enter_context(patch_item(names, name, other))
        for module in call.module.modules():
            for name in [name for name, value in vars(module).items() if value is plain]:
                stack.enter_context(patch_attribute(module, name, other))
        yield call


SHIM = Shim(
    id="causal-flag-as-mask",
    title="Gives SDPA a mask in place of an `is_causal` that depends on dynamic sizes",
    soundness="exact",
    enter=_enter,
    does=(
        "`is_causal=x.shape[1] > 1` is a symbol during export, and SDPA takes a bool. `bool(...)` around it would keep "
        "the answer of the example, and torch refuses no size of one then. Here the program computes the condition at "
        "each call, and a mask that is causal where it holds and lets everything through where it does not. What "
        "Python decides of a condition (`a and b`) while torch traces stays as decided."
    ),
    cures=(Cure(message=r"is_causal.*must be bool|is_causal=SymBool"),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    retire="scaled_dot_product_attention takes a symbolic is_causal",
    rank=29,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="torch.nn.functional.scaled_dot_product_attention",
            before="scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)\n",
            after=(
                "earlier = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()\n"
                "mask = earlier | ~torch.full((), q.shape[2] > 1)\n"
                "scaled_dot_product_attention(q, k, v, attn_mask=mask)\n"
            ),
        ),
    ),
)
