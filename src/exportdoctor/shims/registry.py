"""All shims in one tuple: ours, those of other libraries, the user's. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from exportdoctor.core import versions
from exportdoctor.core.errors import UsageError, did_you_mean
from exportdoctor.shims.cure_pattern import FailureView
from exportdoctor.shims.own import OWN
from exportdoctor.shims.own.frozen import static_axis
from exportdoctor.shims.providers import onnx_diagnostic, transformers_exporters, user
from exportdoctor.shims.record import SOUNDNESS, Shim
from exportdoctor.shims.rules import switches
from exportdoctor.shims.rules.hoisting import hoist

_VERSIONED = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "onnx-diagnostic", "scipy", "optree")


def registry(files: Sequence[str] = ()) -> tuple[Shim, ...]:
    """All shims, `files` being the user's own. A later one with the id of an earlier one takes its place.

    Raises UsageError where a user's file can't be used.
    """
    found = {shim.id: shim for shim in (*_load_installed(), *user.shims_of_files(files))}
    return tuple(found.values())


@cache
def _load_installed() -> tuple[Shim, ...]:
    return (*OWN, *load_package_shims(), *user.shims_of_entry_points())


@cache
def load_package_shims() -> tuple[Shim, ...]:
    """The shims that are found in the sources of installed packages, none of whose code runs."""
    return (*switches.shims(), *transformers_exporters.shims(), *onnx_diagnostic.shims())


def installed_versions() -> dict[str, str]:
    """The versions of the packages that shims are made for."""
    return versions.installed_versions(_VERSIONED)


def find(name: str, *, files: Sequence[str] = (), axes: Mapping[str, tuple[str, ...]] | None = None) -> Shim:
    """The shim of that id; `static-dim:AXIS` freezes one of `axes`, `hoist:FUNCTION` names a function.

    Raises UsageError with ids that come near.
    """
    shims = registry(files)
    found = next((shim for shim in shims if shim.id == name), None)
    kind, _, axis = name.partition(":")
    if found is None and kind == "static-dim" and axes is not None and axis in axes:
        found = static_axis(axis, axes[axis])
    if found is None and kind == hoist.SHIM.id and axis:
        found = hoist.of_function(axis)
    if found is None:
        hint = did_you_mean(name, [shim.id for shim in shims]) or "See: exportdoctor shims list"
        raise UsageError(f"There is no shim {name!r}", hint=hint)
    return found


def candidates(
    seen: FailureView, versions: Mapping[str, str], *, allow: Sequence[str] = (), shims: Sequence[Shim] | None = None
) -> tuple[Shim, ...]:
    """The shims that may cure this failure here, soundest first. Unsound ones only where `allow` holds `unsound`.

    A user's shim that names no failure is there for any.
    """
    found = [
        shim
        for shim in (registry() if shims is None else shims)
        if (shim.soundness != "unsound" or "unsound" in allow)
        and (shim.may_cure(seen) or _always(shim))
        and shim.fits(versions) is None
    ]
    return tuple(sorted(found, key=lambda shim: (SOUNDNESS.index(shim.soundness), shim.rank)))


def _always(shim: Shim) -> bool:
    return shim.provider == user.PROVIDER and not shim.cures
