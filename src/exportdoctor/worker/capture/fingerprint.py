"""Digests of a module with its inputs. Equal digests must mean equal export results.

A digest covers all that an export of the module can see: class, own attributes, parameters' and buffers' shapes,
hooks, children in order, sharing of instances and tensors, and the inputs. What cannot be described by its content
is described by its identity, which can only make two questions different. A `group` digest leaves out the *values* of
plain scalar attributes, such as a layer's index; attribute_reads.py finds out which of those an export reads.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch

from exportdoctor.targets.eager import storage_id
from exportdoctor.worker.capture.class_contents import has_stateful_descriptor, holds_only_attributes
from exportdoctor.worker.capture.dynamic_dims import leaves_of
from exportdoctor.worker.capture.structural_hash import LOCAL, StructuralHash

_INTERNALS = frozenset(torch.nn.Module().__dict__) - {"training"}
_SCALARS = (bool, int, str, float, type(None))
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


@dataclass(frozen=True)
class ModuleDigest:
    """A module without its children: digests with and without scalar values, and those scalars (name, value).

    `objects` are the identities of its tensors, their storages, and whatever else of its attributes can change.
    """

    full: str
    masked: str
    scalars: tuple[tuple[str, str], ...]
    objects: tuple[int, ...]
    local: bool


@dataclass(frozen=True)
class Question:
    """A module and one call of it. Same `full` = same result; same `group` = the same but for the values of `scalars`.

    A `full` that starts with `~` contains an identity and is meaningless in another process.
    """

    full: str
    group: str
    scalars: tuple[tuple[str, str, str], ...]


@dataclass
class Fingerprints:
    """The digests of one captured model, each module's own part made once.

    `values_matter`: the exporter runs on real values (TorchScript), so parameters and inputs count by content.
    `mentioned`: identities of the modules that are equal to none, as state of theirs is kept elsewhere.
    """

    values_matter: bool = False
    mentioned: frozenset[int] = frozenset()
    _own: dict[int, ModuleDigest] = field(default_factory=dict)
    _known: dict[int, tuple[Any, str]] = field(default_factory=dict)

    def question(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], extra: str, *, alone: bool = False
    ) -> Question:
        """The question of `module` with these inputs. `extra`: other facts that matter, such as dynamic dimensions.

        `alone`: its scalars cannot be watched, so its group holds what is equal in these, too.
        """
        inputs = StructuralHash(exact=self._exact_input, known={})
        inputs.write_value((args, kwargs))
        inputs.write(*_storages(args, kwargs))
        full, group = [extra, inputs.digest()], [extra, inputs.digest()]
        scalars: list[tuple[str, str, str]] = []
        numbers: dict[int, int] = {}
        local = inputs.local
        for path, child in module.named_modules(remove_duplicate=False):
            own = self.own(child)
            shared = [str(numbers.setdefault(key, len(numbers))) for key in (id(child), *own.objects)]
            full.extend((path, own.full, *shared))
            group.extend((path, own.masked, *shared))
            local = local or own.local
            scalars.extend((path, name, value) for name, value in own.scalars)
        return Question(LOCAL * local + _hash(full), _hash(full if alone else group), () if alone else tuple(scalars))

    def own(self, module: torch.nn.Module) -> ModuleDigest:
        """The module's own digest, made once for each instance."""
        if id(module) not in self._own:
            self._own[id(module)] = self._describe(module)
        return self._own[id(module)]

    def _describe(self, module: torch.nn.Module) -> ModuleDigest:
        digest = StructuralHash(exact=lambda tensor: True, known=self._known, owner=module)
        digest.write_class(type(module))
        kind: Any = type(module)
        hides = not holds_only_attributes(kind, torch.nn.Module) or has_stateful_descriptor(kind)
        if hides or id(module) in self.mentioned:
            digest.write_identity(module)
        scalars = []
        for name, value in module.__dict__.items():
            if name in _INTERNALS:
                continue
            digest.write("attribute", name)
            if type(value) in _SCALARS and name != "training":
                scalars.append((name, f"{type(value).__name__}:{value!r}"))
            else:
                digest.write_value(value)
        tensors = self._tensors(module, digest)
        digest.write(*(f"{name} {child is None}" for name, child in module._modules.items()))
        for name in _HOOKS:
            digest.write(name)
            for hook in (getattr(module, name, None) or {}).values():
                digest.write_value(hook)
        masked = digest.digest()
        digest.write(*(word for scalar in scalars for word in scalar))
        return ModuleDigest(digest.digest(), masked, tuple(scalars), (*tensors, *digest.shared), digest.local)

    def _tensors(self, module: torch.nn.Module, digest: StructuralHash) -> tuple[int, ...]:
        """Hashes parameters and buffers; returns their and their storages' identities, to recognise tied ones."""
        identities: list[int] = []
        for what, held in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, tensor in held.items():
                digest.write(what, name, name in module._non_persistent_buffers_set)
                if tensor is None:
                    digest.write("none")
                else:
                    digest.write_tensor(tensor, exact=self.values_matter)
                    identities.extend((id(tensor), storage_id(tensor)))
        return tuple(identities)

    def _exact_input(self, tensor: torch.Tensor) -> bool:
        """Small integer inputs often decide control flow, so their values always count."""
        return self.values_matter or (not tensor.is_floating_point() and tensor.numel() <= 4096)


def _storages(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A number for the storage of each input tensor: which of them are views of the same memory."""
    numbers: dict[int, int] = {}
    tensors = [leaf for leaf in leaves_of(args, kwargs) if isinstance(leaf[1], torch.Tensor)]
    return [str(numbers.setdefault(storage_id(leaf[1]), len(numbers))) for leaf in tensors]


def _hash(words: list[str]) -> str:
    return hashlib.sha256("\x1e".join(words).encode(errors="replace")).hexdigest()[:16]
