"""Sentences about a failure of a TorchScript module, of which torch.export knows neither code nor calls."""

from __future__ import annotations

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind

_CLASSES = frozenset({"ScriptModule", "RecursiveScriptModule", "TracedModule", "TopLevelTracedModule"})
_REFUSED = "Exporting a ScriptModule is not supported"

TITLE = "torch.export does not support TorchScript modules"
NEXT = "Use the Python module that was scripted or traced, in place of what torch.jit made of it."
PARAGRAPH = (
    "torch.jit.script and torch.jit.trace compile a module to TorchScript: code of its own, which Python does not run. "
    "torch.export follows a module's Python code, and refuses a model that is TorchScript. A TorchScript module below "
    "the root is called with objects of the tracer that it does not know, and fails with an error that looks like one "
    "of its code. Put the Python module back in its place; its weights are the same, so load_state_dict takes them."
)


def is_torchscript(finding: Finding) -> bool:
    """Whether it fails because its module is TorchScript."""
    of_script = finding.module_class in _CLASSES or finding.exception.message.startswith(_REFUSED)
    return finding.stage == "export" and finding.kind is FailureKind.PYTHON_ERROR and of_script


def why_torchscript(finding: Finding) -> str:
    """Why a TorchScript module fails."""
    return f"{finding.module or 'The model'} is TorchScript, and {TITLE}."
