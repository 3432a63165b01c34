"""A hoisted call that sets, for some inputs alone, what the rest of the forward reads: those inputs are refused."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.export.shims_module import ModuleHeader, shims_module
from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.rules.hoisting.hoisted_state import watch_names

_FREE = {0: Dim.DYNAMIC}
LIMITS = {"seen": 0}


class Growing(nn.Module):
    """As tables of positions that grow with the longest sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.longest, self.scale = 16, 1.0
        self.table = nn.Buffer(torch.ones(16))
        self.settings = SimpleNamespace(scale=1.0)
        self.history: list[int] = []

    def angles(self, positions: Tensor) -> Tensor:
        count = 0
        for position in positions.tolist():
            count = max(count, position + 1)
        self.remember(count)
        return torch.arange(count)[positions]

    def remember(self, count: int) -> None:
        raise NotImplementedError

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = self.angles(positions)
        scale = self.scale * self.table[0] * self.settings.scale + LIMITS["seen"] + len(self.history)
        return x * angles[:, None] * scale


class SetsAttribute(Growing):
    def remember(self, count: int) -> None:
        if count > self.longest:
            self.longest, self.scale = count, count / 16


class CallsSetter(Growing):
    """A method that the example does not call."""

    def remember(self, count: int) -> None:
        if count > self.longest:
            self.grow(count)

    def grow(self, count: int) -> None:
        self.longest, self.scale = count, count / 16


class WritesBuffer(Growing):
    def remember(self, count: int) -> None:
        if count > self.longest:
            self.table.fill_(count / 16)


class SetsByName(Growing):
    def remember(self, count: int) -> None:
        if count > self.longest:
            setattr(self, "scale", count / 16)  # noqa: B010


class SetsSetting(Growing):
    def remember(self, count: int) -> None:
        if count > self.longest:
            self.settings.scale = count / 16


class SetsInside(Growing):
    """Of an object of an object."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = SimpleNamespace(settings=self.settings)
        self.settings = self.outer

    def remember(self, count: int) -> None:
        if count > self.longest:
            self.outer.settings.scale = count / 16

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x * self.angles(positions)[:, None] * self.outer.settings.scale


class FillsArgument(Growing):
    """What it is given is read behind it."""

    def order(self, positions: Tensor, found: dict[str, float]) -> Tensor:
        count = max(positions.tolist())
        if count > self.longest:
            found["scale"] = count / 16
        return positions.clone()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        found = {"scale": 1.0}
        return x * self.order(positions, found)[:, None] * found["scale"]


class WritesArgument(Growing):
    def order(self, positions: Tensor) -> Tensor:
        result = torch.tensor(sorted(positions.tolist()))
        if max(positions.tolist()) > self.longest:
            positions.clamp_(max=self.longest)
        return result

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        own = positions + 0
        return x * self.order(own)[:, None] + own.sum()


class FillsDict(Growing):
    def remember(self, count: int) -> None:
        if count > self.longest:
            LIMITS["seen"] = count


class FillsList(Growing):
    def remember(self, count: int) -> None:
        if count > self.longest:
            self.history.append(count)


class SetsAlways(Growing):
    """Nothing that the forward reads depends on it."""

    def remember(self, count: int) -> None:
        self.longest = count


def inputs(*positions: int) -> tuple[Tensor, Tensor]:
    return torch.ones(len(positions), 2), torch.tensor(positions)


@pytest.mark.parametrize(
    "kind",
    [
        SetsAttribute,
        CallsSetter,
        WritesBuffer,
        SetsByName,
        SetsSetting,
        SetsInside,
        FillsArgument,
        WritesArgument,
        FillsDict,
        FillsList,
    ],
)
def test_inputs_for_which_a_hoisted_call_sets_what_forward_reads_are_refused(
    kind: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "seen", 0)
    module = kind()
    call = ExportCall(module=module, args=inputs(2, 5, 1), dynamic_shapes=(_FREE, _FREE))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    few, many = inputs(3, 9), inputs(40, 2)
    args, kwargs = changed.convert((few, {}))
    assert torch.equal(program(*args, **kwargs), module(*few))
    with pytest.raises(ValueError, match="which the program does not do"):
        changed.convert((many, {}))


class SetsForExample(Growing):
    """As the offsets that Qwen2-VL keeps: they are set for any first call."""

    def remember(self, count: int) -> None:
        self.scale = 2.0


@pytest.mark.parametrize(("kind", "sets"), [(SetsAttribute, ()), (SetsForExample, ("scale",))])
def test_the_file_of_the_shims_refuses_what_was_not_set_at_the_export(
    kind: Callable[[], nn.Module], sets: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = kind()
    call = ExportCall(module=module, args=inputs(2, 5, 1), dynamic_shapes=(_FREE, _FREE))
    with apply_shims([find("hoist")], call) as changed:
        assert changed.sets == {*sets}
    about = ModuleHeader(title="model", part="default", made_by="a test", versions={}, sets=sets)
    name = f"shims_for_{kind.__name__}"  # type: ignore[attr-defined]
    (tmp_path / f"{name}.py").write_text(shims_module([find("hoist")], about))
    monkeypatch.syspath_prepend(tmp_path)
    convert = importlib.import_module(name).convert
    assert convert(module, inputs(3, 9))[1]["angles__0_0"].tolist() == [3, 9]
    with nullcontext() if sets else pytest.raises(ValueError, match="which the program does not do"):
        convert(module, inputs(40, 2))


def test_what_nobody_else_reads_may_be_set() -> None:
    module = SetsAlways()
    call = ExportCall(module=module, args=inputs(2, 5, 1), dynamic_shapes=(_FREE, _FREE))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    given = inputs(40, 2)
    args, kwargs = changed.convert((given, {}))
    assert torch.equal(program(*args, **kwargs), module(*given))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda module: module.history.append(1), {"history"}),
        (lambda module: module.table.add_(1), {"table"}),
        (lambda module: setattr(type(module), "history", ()), {"history"}),
        (lambda module: LIMITS.update(seen=LIMITS["seen"]), set()),
        (lambda module: setattr(module, "scale", 1.0), set()),
        (lambda module: module.table.add(1), set()),
    ],
)
def test_a_change_is_seen_wherever_a_name_is_held(change: Any, names: set[str]) -> None:
    module = type("Own", (SetsAttribute,), {"history": None})()
    watched = frozenset({"history", "table", "scale", "LIMITS", "settings"})
    forward: Any = Growing.forward
    assert watch_names(module, forward, watched, lambda: change(module), ())[1] == names


def test_an_attribute_of_an_ordered_dict_is_seen() -> None:
    module: Any = SetsAttribute()
    module.counts = OrderedDict()
    module.counts.scale = 1.0
    forward: Any = Growing.forward
    changed = watch_names(module, forward, frozenset({"scale"}), lambda: setattr(module.counts, "scale", 2.0), ())[1]
    assert changed == {"scale"}


class Aliased(nn.Module):
    """The second result is a row of the first, so that a write into it is seen in both."""

    def plan(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.zeros(3, 4)
        for position in positions.tolist():
            mask[position] += 1
        return mask, mask[0]

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        mask, row = self.plan(positions)
        row += 1
        return x + mask.sum()


def test_inputs_that_are_made_share_no_memory() -> None:
    call = ExportCall(module=Aliased(), args=inputs(2, 0, 1), dynamic_shapes=(_FREE, _FREE))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    args, kwargs = changed.convert((inputs(2, 1), {}))
    mask, row = kwargs["plan__0_0"], kwargs["plan__0_1"]
    assert torch.equal(mask[0], row)
    assert mask.data_ptr() != row.data_ptr()
    assert not torch.equal(program(*args, **kwargs), Aliased()(*inputs(2, 1))), "so that a comparison shows it"
