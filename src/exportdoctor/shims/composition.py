"""Several shims at once: entered in order and exited in reverse, with errors that name the shim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.leaks import left_behind, snapshot
from exportdoctor.shims.record import NotApplicable, Shim, ShimTrouble


@contextmanager
def apply_shims(shims: Sequence[Shim], call: ExportCall) -> Iterator[ExportCall]:
    """Within it all of `shims` hold; yields the call to export.

    Raises NotApplicable where one finds nothing to change, and ShimTrouble, which names it, where two of them conflict,
    where one fails to enter or to leave, or where a user's shim leaves something behind.
    """
    if clash := find_conflict(shims):
        raise ShimTrouble(f"{' and '.join(clash)} cannot be combined", hint="Leave one of them out")
    with ExitStack() as stack:
        for shim in shims:
            call = stack.enter_context(_enter_named(shim, call))
        yield call


def order_shims(shims: Sequence[Shim]) -> tuple[Shim, ...]:
    """The shims in the order in which they are applied: input changes first, so that patches see the final call,
    but for those that look at what the patches leave."""
    return tuple(sorted(shims, key=lambda shim: (shim.late, shim.soundness != "signature", shim.rank, shim.id)))


def find_conflict(shims: Sequence[Shim], others: Sequence[str] = ()) -> tuple[str, str] | None:
    """The ids of two shims that cannot be combined, of these and of `others` by id; `None` where all can."""
    ids = [*(shim.id for shim in shims), *others]
    for place, shim in enumerate(shims):
        for at, other in enumerate(ids):
            if at != place and (other == shim.id or conflicts_with(shim, other)):
                return shim.id, other
    return None


def conflicts_with(shim: Shim, other: str) -> bool:
    """Whether a shim must not be applied with the other, given by id; a family's name covers all its members."""
    return any(other == name or other.startswith(f"{name}:") for name in shim.conflicts)


@contextmanager
def _enter_named(shim: Shim, call: ExportCall) -> Iterator[ExportCall]:
    """The shim's own context; its errors, but not those of the body, are raised with its name."""
    before = snapshot(call) if shim.provider == "user" else None
    try:
        context = shim.apply(call)
        changed = context.__enter__()
    except NotApplicable as reason:
        raise _with_name(reason, shim) from None
    except Exception as error:
        raise _trouble(shim, "could not be entered", error) from error
    if not isinstance(changed, ExportCall):
        found = type(changed).__name__
        raise ShimTrouble(f"the shim {shim.id} yields a {found} instead of an ExportCall", hint="Yield the call")
    entered = snapshot(call) if before is not None else None
    failure: BaseException | None = None
    try:
        yield changed
    except BaseException as error:
        failure = error
        raise
    finally:
        _leave(shim, context, failure)
        if before is not None and entered is not None:
            _check_leaks(shim, left_behind(before, entered, snapshot(call)), failure)


def _leave(shim: Shim, context: AbstractContextManager[ExportCall], failure: BaseException | None) -> None:
    """Exit as `with` does, except that a shim cannot suppress the body's failure; only now may it know that it does
    not apply."""
    try:
        context.__exit__(type(failure) if failure else None, failure, failure.__traceback__ if failure else None)
    except NotApplicable as reason:
        raise _with_name(reason, shim) from None
    except Exception as error:
        if error is not failure:
            raise _trouble(shim, "could not be left", error) from error


def _with_name(reason: NotApplicable, shim: Shim) -> NotApplicable:
    named = type(reason)(f"{shim.id}: {reason}")
    named.shim = shim.id
    return named


def _check_leaks(shim: Shim, left: tuple[str, ...], failure: BaseException | None) -> None:
    if not left:
        return
    trouble = ShimTrouble(f"the shim {shim.id} did not restore {', '.join(left)}", hint="Restore it after the yield")
    if failure is None:
        raise trouble
    failure.add_note(trouble.line())


def _trouble(shim: Shim, what: str, error: Exception) -> ShimTrouble:
    return ShimTrouble(f"the shim {shim.id} {what}: {type(error).__name__}: {error}", hint="Leave it out, or fix it")
