"""Names for what is in a class that was registered as a pytree node without `flatten_with_keys_fn`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.torch_internals.pytree_registry import add_keys, classes_without_keys, temporary_registrations


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    if not classes_without_keys():
        raise NotApplicable("every registered class has names for its children")

    def add_all() -> None:
        for kind in classes_without_keys():
            add_keys(kind)

    with temporary_registrations(add_all):
        yield call


SHIM = Shim(
    id="register-pytree-keys",
    title="Names what is in registered pytree nodes by its place",
    soundness="exact",
    enter=_enter,
    does=(
        "Each class that was registered as a pytree node without flatten_with_keys_fn gets one for the time of the "
        "export: what it is taken apart into is named by its place. Nothing else of the registration changes. "
        "The program, too, is called with such classes registered so: it compares its inputs by these names."
    ),
    cures=(Cure(kinds=("unregistered_pytree",), message="Did not find a flatten_with_keys_fn"),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/pytree.html",
    retire="torch.export names the children of nodes without keys",
    rank=15,
    replaces=(
        Replacement(
            target="torch.utils._pytree.SUPPORTED_NODES",
            after="register_pytree_node(Pair, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys)\n",
        ),
    ),
)
