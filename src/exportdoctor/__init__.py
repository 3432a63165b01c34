"""A diagnostic debugger for torch.export: which submodule, function, line and op fails, why, and what cures it.

    import exportdoctor
    report = exportdoctor.scan(module, args, kwargs, dynamic_shapes=...)

Importing this imports neither torch nor anything else of exportdoctor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exportdoctor.api import scan as scan

__all__ = ["scan"]


def __getattr__(name: str) -> Any:
    if name == "scan":
        from exportdoctor.api import scan

        return scan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What completion offers."""
    return list(__all__)
