"""Whether a tensor is written into after a rewrite has made a copy of it, so that one of two alone has the write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from exportdoctor.shims.record import NotApplicable


@dataclass
class LaterWrites:
    """Tensors that may be a copy where they were none, or were copied. `maker` says what made the copies, `named` which
    tensors these are, and `operator` the operator of torch in whose program a write cannot be seen."""

    maker: str
    named: str
    operator: str
    kept: list[tuple[Any, int]] = field(default_factory=list)

    def keep(self, *values: Any) -> None:
        """Note how often the tensors among them were written into."""
        import torch

        self.kept += [(one, self._version_of(one)) for one in values if isinstance(one, torch.Tensor)]

    def check(self, program: Any) -> None:
        """Raises NotApplicable where a later write went to one of two values alone, or may have."""
        if any(self._version_of(tensor) != version for tensor, version in self.kept):
            raise NotApplicable(f"a tensor is written into {self.named}")
        if self.kept and any(_is_uncounted(node) for node in program.graph.nodes):
            raise NotApplicable(f"the program writes into a list of tensors, one of which may be one {self.named}")
        if not self.kept and self._has_and_writes(program):
            makers = self.maker + ("es" if self.maker.endswith("ch") else "s")
            raise NotApplicable(f"the program has {makers} and writes into tensors, which a strict export hides")

    def _version_of(self, tensor: Any) -> int:
        """How often the tensor or a view of it was written into; that cannot be seen of one made in inference mode."""
        if tensor.is_inference():
            raise NotApplicable(f"in inference mode torch does not count writes into tensors of a {self.maker}")
        return int(tensor._version)

    def _has_and_writes(self, program: Any) -> bool:
        """Whether the program has the operator, and one that writes into a tensor."""
        import torch

        targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
        writes = any(getattr(getattr(one, "_schema", None), "is_mutable", False) for one in targets)
        return writes and getattr(torch.ops.higher_order, self.operator) in targets


def _is_uncounted(node: Any) -> bool:
    """Whether it writes into a list of tensors, as `torch._foreach_add_` does: of these torch counts no write while it
    exports."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and schema.name.startswith("aten::_foreach_")
