"""For each of our own shims a module that cannot be exported without it, and what is said then."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import register_pytree_node
from transformers import masking_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.vision_utils import get_vision_window_index

import exportdoctor.shims as sh
from exportdoctor.shims import ExportCall, ExportOptions
from exportdoctor.targets.eager import run_calls
from exportdoctor.targets.parts.decode import cache_input


@dataclass(frozen=True, kw_only=True)
class Case:
    """`call()` is fresh each time; without the shim `export` raises something that says `fails`.

    `others` are inputs of other sizes that the program must take too; a specialised one has none. `eager` makes the
    module to compare with for each input set, where the one that is exported is not as new. `mended`: the releases of
    torch in which it exports without the shim, which older ones need.
    """

    call: Callable[[], ExportCall]
    fails: str
    mended: str = ""
    others: tuple[tuple[Any, ...], ...] = ()
    export: Callable[[ExportCall], Any] = sh.export_program
    eager: Callable[[], nn.Module] | None = None


@torch.library.custom_op("shim_cases::smooth", mutates_args=())
def smooth(x: Tensor) -> Tensor:
    """An operator whose author registered no fake kernel."""
    return (x + x.roll(1, 0)) / 2


class Smoothing(nn.Module):
    """Runs an operator that has no fake kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return smooth(x) * x


class Weighing(nn.Module):
    """Takes the data of its weight, past the tracer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.data / self.weight.data.norm())


class Totalling(nn.Module):
    """Assigns its buffer, which torch.export loses where it is no root."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.sum(0)
        return x * 2


def keeping_buffers(call: ExportCall) -> Any:
    """The program; raises where a call of it leaves a buffer otherwise than eager."""
    program = sh.export_program(call)
    found, wanted = (run_calls(one, [(call.args, call.kwargs)])[0].buffers for one in (program.module(), call.module))
    for name, buffer in wanted.items():
        if name not in found or not torch.equal(buffer, found[name]):
            raise AssertionError(f"what eager makes of the buffer {name} is lost")
    return program


def grids(*sides: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    """Patches (count, 4) with their grid (1, 3), for each height and width."""
    torch.manual_seed(0)
    return [(torch.randn(h * w, 4), torch.tensor([[1, h, w]])) for h, w in sides]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 2)

    def forward(self, patches: Tensor, grid_thw: Tensor, **kwargs: Any) -> Tensor:
        window_index, _ = get_vision_window_index(grid_thw, 1, 8, 4, kwargs=kwargs)
        return self.proj(patches)[window_index]


class Chained(nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.einsum("ij,jk,kl->il", x, y, z)


class Experts(nn.Module):
    """Rows go to one of three layers; one without rows is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == place).squeeze(-1)
            if rows.shape[0] == 0:
                continue
            out = out.index_add(0, rows, expert(x[rows]))
        return out


class Unmasking(nn.Module):
    """A mask that masks nothing is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        kept = None if mask.all() else mask
        x = self.proj(x)
        return x if kept is None else x * kept[:, None]


class Mean(nn.Module):
    """It counts rows, and parts of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(0) / len(x) + len([x, x]) * len("ab")


class Noised(nn.Module):
    """Draws as many values as there are in the input, and adds none of them."""

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        drawn = torch.randn(x.shape, generator=generator) + torch.rand(x.shape[0], 1, generator=None)
        return x + 0 * (drawn + torch.randint(0, 9, (x.shape[0], 1), generator=None))


class Unmasked(nn.Module):
    """What a mask leaves out."""

    def forward(self, mask: Tensor) -> Tensor:
        return (1.0 - mask) * -10.0


class Packing(nn.Module):
    """Rows of several lengths, packed for a recurrent module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(2, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        found, _ = self.inner(pack_padded_sequence(x, lengths))
        return pad_packed_sequence(found, total_length=x.shape[0])[0]


class Grouping(nn.Module):
    """A number that is a buffer."""

    groups: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("groups", torch.tensor(2))

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (int(self.groups), -1)).flip(1).flatten(1)


class Striding(nn.Module):
    """Pads rows to whole steps of a stride that is a buffer."""

    stride: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.ceil(x.shape[0] / self.stride).to(torch.int64)
        missing = steps * self.stride - x.shape[0]
        if missing > 0:
            x = F.pad(x, [0, 0, 0, missing])  # type: ignore[list-item]
        return x.unflatten(0, (-1, 4)).sum(1)


class Positions(nn.Module):
    """As many positions as rows."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.linspace(-1, 1, x.shape[0])[:, None] * torch.fft.fftfreq(x.shape[0])[:, None]


class Recurrence(nn.Module):
    """Each row decays what the rows before it left."""

    def forward(self, x: Tensor) -> Tensor:
        state, states = x[0] * 0, []
        for row in range(x.shape[0]):
            state = state * 0.5 + x[row]
            states.append(state)
        return torch.stack(states)


class Windows(nn.Module):
    """Sums of windows of four rows, of which the example has two."""

    def forward(self, x: Tensor) -> Tensor:
        ends = [min(x.shape[0], start + 4) for start in range(0, x.shape[0], 4)]
        return torch.stack([x[start:end].sum(0) for start, end in zip(range(0, 8, 4), ends)])


class Cropping(nn.Module):
    """A number that is read where it is needed."""

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        return x[: int(count)] * 2


class EncoderOfMethods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 2)

    def rows(self, grid_thw: Tensor) -> Tensor:
        found = []
        for _, height, width in grid_thw.tolist():
            found.append(torch.arange(int(height) * int(width)).reshape(int(height), int(width)).t().flatten())
        return torch.cat(found)

    def forward(self, patches: Tensor, grid_thw: Tensor) -> Tensor:
        order = self.rows(grid_thw)
        return self.proj(patches)[order]


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)

    def get_rope_index(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        rows = [torch.tensor([place * (token > 3) for place, token in enumerate(row)]) for row in input_ids.tolist()]
        return torch.stack(rows), torch.zeros(1)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if position_ids is None:
            position_ids, _ = self.get_rope_index(input_ids)
        return self.words(input_ids) * position_ids.unsqueeze(-1)


def eager_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    weights = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5
    if attention_mask is not None:
        weights = weights + attention_mask
    return (weights.softmax(-1) @ value).transpose(1, 2), None


class PackedAttention(nn.Module):
    """As transformers' vision attention: one row, cut at its boundaries."""

    def __init__(self, implementation: str = "sdpa") -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation=implementation)
        self.qkv = nn.Linear(4, 12)
        self.is_causal = False

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
        query, key, value = self.qkv(hidden_states).reshape(-1, 3, 2, 2).permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        attention = eager_attention_forward
        if self.config._attn_implementation != "eager":
            attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        lengths = cu_seqlens[1:] - cu_seqlens[:-1]
        splits = [torch.split(tensor, lengths.tolist(), dim=2) for tensor in (query, key, value)]
        parts = [attention(self, q, k, v, attention_mask=None, is_causal=False)[0] for q, k, v in zip(*splits)]
        return torch.cat(parts, dim=1).flatten(2)


def rows(*boundaries: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(found[-1], 4), torch.tensor(found)) for found in boundaries]


class Masked(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, embeds: Tensor, mask: Tensor) -> Tensor:
        steps = torch.arange(mask.shape[1])
        indices = (torch.arange(mask.shape[0]), torch.arange(1), steps, steps)
        function = masking_utils.and_masks(
            masking_utils.causal_mask_function, masking_utils.padding_mask_function(mask.bool())
        )
        with masking_utils.TransformGetItemToIndex():  # type: ignore[attr-defined]
            visible = masking_utils._vmap_expansion_sdpa(function)(*indices)
        return F.scaled_dot_product_attention(embeds, embeds, embeds, attn_mask=visible)


def scripted(call: ExportCall) -> Any:
    """The TorchScript exporter's own tracing."""
    with torch.no_grad():
        torch.onnx.export(call.module, call.args, "/dev/null", dynamo=False)


class ShortRow(nn.Module):
    """Attention over as many rows as a number read out of a tensor; not causal."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.config = config

    def forward(self, rows: Tensor, count: Tensor) -> Tensor:
        size = count.item()
        torch._check(size >= 1)
        torch._check(size < rows.shape[2])
        row = rows[:, :, :size]
        attention = sdpa_attention_forward
        if self.config is not None:
            attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        else:
            from transformers.integrations import sdpa_attention as now

            attention = now.sdpa_attention_forward
        return attention(self, row, rows, rows, None, is_causal=False)[0]


def counted(*counts: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(2, 2, 9, 4), torch.tensor(count)) for count in counts]


class Checked(nn.Module):
    def forward(self, values: Tensor, chosen: Tensor, expected: Tensor) -> Tensor:
        picked = values[chosen]
        if picked.numel() != expected.numel():
            raise ValueError("they differ")
        return values.masked_scatter(chosen, expected)


def checks(*sizes: int) -> list[tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return [(torch.randn(size), torch.arange(size) % 2 == 0, torch.randn((size + 1) // 2)) for size in sizes]


class Router(nn.Module):
    """As routers of experts do, which compute in the dtype that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(4, 3)

    def forward(self, values: Tensor) -> Tensor:
        self.classifier = self.classifier.to(torch.float32)
        found: Tensor = self.classifier(values).softmax(-1)
        return found


class Routed(nn.Module):
    """Scales what each number has chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.randn(3))

    def forward(self, best: Tensor) -> Tensor:
        out = best * 0.5
        for e in best.unique().tolist():
            out[best == e] += self.scales[e]
        return out


class Halving(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while x.abs().max() > 1:
            x = x / 2
        return x


class Clamping(nn.Module):
    """As models do in low precision: values that overflow are clamped."""

    def forward(self, values: Tensor) -> Tensor:
        if torch.isinf(values).any() or torch.isnan(values).any():
            limit = torch.finfo(values.dtype).max - 1000
            values = torch.clamp(values, min=-limit, max=limit)
        return values / 2


@dataclass
class Answer:
    logits: Tensor
    score: Tensor


class Pair:
    """A node that says how it is taken apart, and no names for what is in it."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right


register_pytree_node(
    Pair, lambda pair: ([pair.left, pair.right], None), lambda tensors, _: Pair(*tensors), serialized_type_name="Pair"
)


class Joining(nn.Module):
    def forward(self, pair: Pair) -> Pair:
        return Pair(pair.left + pair.right, pair.right)


class Differing(nn.Module):
    def forward(self, pair: list[Tensor]) -> Tensor:
        return pair[0] * 2 - pair[1]


def reading_all(call: ExportCall) -> Any:
    """The program, which reads all its inputs."""
    program = sh.export_program(call)
    for node in program.graph.nodes:
        if node.op == "placeholder" and not node.users:
            raise RuntimeError(f"nobody reads {node.name}")
    return program


class Rooted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / math.sqrt(x.shape[0]) + int(math.log2(x.shape[0] + 1))


class RootedByNumpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / np.sqrt(x.shape[0]) + int(np.prod(x.shape)) + np.ceil(x.shape[0] / 2)


class Summing(nn.Module):
    def forward(self, pair: list[Tensor], shift: Tensor | None = None) -> Tensor:
        total = pair[0] + pair[1]
        return total if shift is None else total + shift


@lru_cache
def positions_of(rows: int) -> Tensor:
    return torch.arange(rows, dtype=torch.float32) / 2


class Placing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + positions_of(x.shape[0])[:, None]


class Scattering(nn.Module):
    def forward(self, rows: Tensor, groups: Tensor) -> Tensor:
        count = int(groups.max()) + 1
        return rows.new_zeros(count, rows.shape[1]).index_add(0, groups, rows)


class Stepping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        times = torch.linspace(0, 1, 4)
        return x * times.sum() if times[0] < times[-1] else -x


class Looking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = F.scaled_dot_product_attention

    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        first = F.scaled_dot_product_attention(x, past, past, is_causal=x.shape[1] > 1, scale=0.4)
        return first + self.attend(x, past, past, is_causal=x.shape[1] > 1)


class Speaking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        print(f"norm {x.norm().item():.2f}")
        warnings.warn("large" if x.max() > 9 else "small", stacklevel=2)
        return x + 1


class Classing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(x).sum(0)


class Scaling(nn.Module):
    """Points by the size of their image, and the largest of two values."""

    def forward(self, x: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        size = x.new_tensor([image.shape[1], image.shape[0], 1, 1])
        return x / size, torch.tensor([x.sum(), image.mean(), 1.0]).max()


class Marking(nn.Module):
    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        mask = torch.zeros(x.shape, dtype=torch.bool)
        mask[:, at] = True
        return x.masked_fill(mask, 0.0)


class Choosing(nn.Module):
    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        return (x * torch.from_numpy(weights.numpy())[:, None])[chosen.tolist()]


class Sloping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer(at).tanh().sum(), at)[0]


class Selecting(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * torch.scalar_tensor(torch.equal(x, y), dtype=x.dtype)


class Answering(nn.Module):
    def forward(self, x: Tensor) -> Answer:
        return Answer(logits=x * 2, score=x.sum())


class Store:
    """A cache of one's own: no dataclass, and no pytree node."""

    def __init__(self, rows: Tensor, seen: int) -> None:
        self.rows, self.seen = rows, seen


class Growing(nn.Module):
    """Adds a row to the store that it is given."""

    def forward(self, x: Tensor, store: Store) -> Store:
        store.rows = torch.cat([store.rows, x])
        store.seen += 1
        return store


class Remembering(nn.Module):
    """Its first call decides on offsets, one for each row, which later calls reuse."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: Tensor | None = None

    def decide(self, x: Tensor) -> None:
        self.offsets = x * 0 + 1

    def forward(self, x: Tensor) -> Tensor:
        if self.offsets is None:
            self.decide(x)
        return x + self.offsets  # type: ignore[operator]


def used_before() -> nn.Module:
    module = Remembering()
    module(torch.randn(3))
    return module


class Bundling(nn.Module):
    def forward(self, x: Tensor, **kwargs: Tensor) -> Tensor:
        return x * kwargs["scale"]


class Filling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.mul(x, self.scale, out=torch.empty_like(x))


class Nested(nn.Module):
    """As many modules within each other as eager has room for."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Nested(depth - 1) if depth else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 1)


def made_a_module(call: ExportCall) -> Any:
    """The program, of which torch makes a module."""
    program = sh.export_program(call)
    program.module()
    return program


class Relations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = nn.ModuleDict({"in": nn.Linear(4, 4), "in_": nn.Linear(4, 4), "out": nn.BatchNorm1d(4)})
        self.register_buffer("lambda", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.by["out"](self.by["in"](x).relu() - self.by["in_"](x)) * self.get_buffer("lambda")


class Odd(nn.Module):
    """dynamo refuses to iterate over the frames of the interpreter."""

    def forward(self, x: Tensor) -> Tensor:
        import sys

        return x * (2 if sys._getframe().f_code.co_name else 3)


class Counting(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * 2 if x.shape[0] % 3 == 0 else x * y.sum()


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Shifting(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y[1:]


class Projecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class Looping(nn.Module):
    def forward(self, x: Tensor, grid_thw: Tensor) -> Tensor:
        for _, height, width in grid_thw.tolist():
            x = x + torch.arange(int(height) * int(width)).reshape(int(height), int(width)).sum()
        return x


class Pictures(nn.Module):
    """Features that are split by picture, and joined again elsewhere."""

    def features(self, x: Tensor, sizes: Tensor) -> Any:
        lengths = sizes.tolist()
        return torch.split(x * 2, lengths)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        return torch.cat(self.features(x, sizes), dim=0) + 1


def pictures(*lengths: int) -> tuple[Tensor, Tensor]:
    return torch.randn(sum(lengths), 4), torch.tensor(lengths)


class Listing(nn.Module):
    """A value that Python reads while it runs: dynamo, which interprets, follows it."""

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        def one(query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & padding[key]

        steps = torch.arange(padding.shape[0])
        inner = torch.vmap(one, in_dims=(None, 0))
        return torch.vmap(inner, in_dims=(0, None))(steps, steps) * x


def tiny_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    return LlamaForCausalLM(config).eval()


def sliding_mistral() -> nn.Module:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, sliding_window=8, initializer_range=0.5,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


CACHE = str(cache_input(sliding_mistral()))
"""The name of the input that takes the cache: transformers 5.24 gave it another."""


@cache
def after_prompt(length: int, seed: int = 0) -> Any:
    """The cache of the sliding Mistral after a prompt, and its next word, int (1, 1)."""
    from transformers import DynamicCache

    model = sliding_mistral()
    prompt = torch.randint(40, (1, length), generator=torch.Generator().manual_seed(seed))
    config: Any = model.config
    found = DynamicCache(config=config)
    with torch.no_grad():
        logits = model(prompt, past_key_values=found).logits
    return found, logits[:, -1:].argmax(-1)


def with_attention(implementation: str) -> Any:
    from transformers import PreTrainedConfig

    config = PreTrainedConfig()
    config._attn_implementation = implementation
    return config


def translated(call: ExportCall) -> Any:
    """The program, after torch.onnx has translated it."""
    program = sh.export_program(call)
    torch.onnx.export(program, dynamo=True, verbose=False)
    return program


def case(
    module: Callable[[], nn.Module],
    inputs: list[Any],
    fails: str,
    shapes: Any = None,
    *,
    strict: bool = False,
    names: tuple[str, ...] = (),
    export: Callable[[ExportCall], Any] = sh.export_program,
    eager: Callable[[], nn.Module] | None = None,
    mended: str = "",
) -> Case:
    """The first inputs are the example's, the rest the others; `names` passes the last of them by keyword."""

    def split(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        cut = len(args) - len(names)
        return args[:cut], dict(zip(names, args[cut:]))

    def call() -> ExportCall:
        args, kwargs = split(tuple(map(copy.deepcopy, inputs[0])))  # torch leaves marks on what it exported
        return ExportCall(
            module=module().eval(),
            args=args,
            kwargs=kwargs,
            dynamic_shapes=shapes,
            more_inputs=tuple(split(more) for more in inputs[1:]) if shapes else (),
            options=ExportOptions(strict=strict),
        )

    others = tuple(split(more) for more in inputs[1:])
    return Case(call=call, fails=fails, mended=mended, others=others, export=export, eager=eager)


class Binned(nn.Module):
    """Values in bins of which the edges are an input."""

    def forward(self, edges: Tensor, values: Tensor) -> Tensor:
        return torch.searchsorted(edges.sort().values, values)


class Turned(nn.Module):
    """Rotary embeddings by complex numbers, of any length."""

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
        turns = torch.polar(torch.ones_like(angles), angles).unsqueeze(0)
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turns).flatten(-2)


class Shrunk(nn.Module):
    """Images of a grid whose sizes torch reads from tensors; a view asks whether there are elements."""

    def forward(self, patches: Tensor, grid: Any) -> Tensor:
        time, height, width = grid.unbind()
        image = patches.reshape(time, height, width, 3).permute(0, 3, 1, 2)
        small = nn.functional.interpolate(image, size=(height // 2, width // 2), mode="bilinear")
        return small.permute(0, 2, 3, 1).view(-1, 3)


_GRIDS = [(torch.randn(t * h * w, 3), torch.tensor([t, h, w])) for t, h, w in ((1, 4, 6), (2, 6, 4), (1, 2, 2))]

_FREE = {0: Dim.DYNAMIC}
_WORDS = [(torch.tensor([[1, 5, 2, 7]]),), (torch.tensor([[4, 1, 6, 3, 8, 2]]),)]

CASES: dict[str, Case] = {
    "precompute-grid": case(Encoder, grids((4, 4), (4, 6)), "DataDependent", (_FREE, None)),
    "precompute-grid-methods": case(EncoderOfMethods, grids((4, 4), (4, 6)), "data-dependent|Pending", (_FREE, None)),
    "precompute-position-ids": case(Reader, _WORDS, "data-dependent|Pending", {"input_ids": {1: Dim.DYNAMIC}}),
    "hoist": case(EncoderOfMethods, grids((4, 4), (4, 6)), "data-dependent|Pending", (_FREE, None)),
    "hoist-numbers": case(Cropping, [(torch.randn(9), torch.tensor(n)) for n in (4, 7)], "ata-dependent", (None, None)),
    "sizes-from-one": case(Shrunk, _GRIDS, "ata-dependent", (_FREE, None)),
    "block-diagonal-attention": case(PackedAttention, rows((0, 3, 8, 10), (0, 1, 2, 12, 17)), "u0 > 1", (_FREE, _FREE)),
    "joined-split": case(Pictures, [pictures(2, 3, 1), pictures(4, 3)], "specialized|not always", (_FREE, _FREE)),
    "mask-without-vmap": case(
        lambda: Masked(None), [(torch.randn(2, 1, 5, 4), torch.ones(2, 5))], "map::at|vmap|batched", export=scripted
    ),
    "sdpa-without-size-check": case(ShortRow, counted(5, 3), "u0 > 1"),
    "check-as-assertion": case(Checked, checks(6, 9), "Ne|Eq", {"values": _FREE, "chosen": _FREE, "expected": _FREE}),
    "branch-as-where": case(
        Clamping, [(torch.randn(3),), (torch.tensor([1.0, float("inf")]),)], "Eq|guard", ({0: Dim.DYNAMIC},)
    ),
    "found-numbers-as-range": case(
        Routed,
        [(torch.tensor([2, 0, 2]),), (torch.tensor([1]),), (torch.tensor([2, 1, 0, 0]),)],
        "Eq|guard",
        ({0: Dim.DYNAMIC},),
    ),
    "while-as-while-loop": case(
        Halving, [(torch.tensor(one),) for one in ([3.0, 9.0], [0.5, 0.1], [70.0, 1.0])], "Eq|guard"
    ),
    "max-pool-1d-as-2d": case(
        lambda: nn.MaxPool1d(3, 2, 1, ceil_mode=True),
        [(torch.randn(2, 3, 9),), (torch.randn(4, 3, 14),)],
        "Constraints violated",
        ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC},),
    ),
    "module-to-if-other": case(
        Router, [(torch.randn(2, 4),), (torch.randn(3, 4),)], "Couldn't swap", ({0: Dim.DYNAMIC},)
    ),
    "loops-by-count": case(
        Windows, [(torch.randn(7, 2),), (torch.randn(6, 2),), (torch.randn(8, 2),)], "Constraints violated", (_FREE,)
    ),
    "no-empty-shortcut": case(
        Experts,
        [(torch.randn(4, 2), torch.tensor(chosen)) for chosen in ([0, 1, 1, 0], [2, 2, 2, 2], [0, 1, 2, 0])],
        "data-dependent",
    ),
    "branches-as-example": case(
        Unmasking,
        [(torch.randn(3, 4), torch.tensor(mask)) for mask in ([1, 1, 0], [0, 1, 1], [0, 1, 0])],
        "data-dependent",
        (_FREE, _FREE),
    ),
    "len-as-size": case(
        Mean, [(torch.randn(5, 2),), (torch.randn(2, 2),), (torch.randn(9, 2),)], "Constraints violated", (_FREE,)
    ),
    "math-of-sizes": case(
        Rooted, [(torch.randn(4, 2),), (torch.randn(9, 2),), (torch.randn(7, 2),)], "Constraints violated", (_FREE,)
    ),
    "numpy-of-sizes": case(
        RootedByNumpy,
        [(torch.randn(4, 2),), (torch.randn(9, 2),), (torch.randn(7, 2),)],
        "Constraints violated|SymInt",
        (_FREE,),
    ),
    "float-minus-integers": case(
        Unmasked,
        [(torch.tensor([1, 0, 1]),), (torch.tensor([0, 0, 5, 7]),)],
        "OpOverload for aten.sub",
        (_FREE,),
        export=translated,
    ),
    "decomposed-for-onnx": case(
        Binned,
        [(torch.randn(4), torch.randn(2, 5)), (torch.randn(3), torch.randn(2, 7)), (torch.randn(9), torch.randn(2, 2))],
        "No ONNX function found",
        ({0: Dim("edges", min=2)}, {1: Dim("length", min=2)}),
        export=translated,
    ),
    "complex-as-parts": case(
        Turned,
        [(torch.randn(2, 5, 8),), (torch.randn(2, 3, 8),), (torch.randn(2, 9, 8),)],
        "No ONNX function found",
        ({1: Dim("length", min=2)},),
        export=translated,
    ),
    "default-generator": case(
        Noised, [(torch.randn(5, 2),), (torch.randn(3, 2),), (torch.randn(9, 2),)], "SymIntArrayRef", (_FREE,)
    ),
    "rnn-as-scan": case(
        lambda: nn.GRU(2, 3),
        [(torch.randn(5, 2, 2),), (torch.randn(3, 2, 2),), (torch.randn(9, 2, 2),)],
        "Constraints violated",
        (_FREE,),
    ),
    "packed-as-padded": case(
        Packing,
        [
            (torch.randn(5, 2, 2), torch.tensor([5, 3])),
            (torch.randn(3, 2, 2), torch.tensor([2, 1])),
            (torch.randn(9, 2, 2), torch.tensor([9, 9])),
        ],
        "failed to unpack",
        (_FREE, {}),
    ),
    "state-as-constants": case(
        Grouping, [(torch.randn(5, 4),), (torch.randn(2, 4),), (torch.randn(9, 4),)], "data-dependent", (_FREE,)
    ),
    "data-as-detach": case(Weighing, [(torch.randn(5, 2),), (torch.randn(7, 2),)], "fake tensor", (_FREE,)),
    "assigned-buffers": case(
        lambda: nn.Sequential(Totalling()),
        [(torch.randn(5, 2),), (torch.randn(7, 2),), (torch.randn(11, 2),)],
        "total is lost",
        (_FREE,),
        export=keeping_buffers,
    ),
    "sizes-from-buffers": case(
        Striding, [(torch.randn(5, 2),), (torch.randn(7, 2),), (torch.randn(11, 2),)], "data-dependent", (_FREE,)
    ),
    "ranges-by-arange": case(
        Positions, [(torch.randn(5, 2),), (torch.randn(2, 2),), (torch.randn(9, 2),)], "Constraints violated", (_FREE,)
    ),
    "loops-as-scan": case(
        Recurrence, [(torch.randn(5, 2),), (torch.randn(3, 2),), (torch.randn(9, 2),)], "Constraints violated", (_FREE,)
    ),
    "attn-eager": case(lambda: ShortRow(with_attention("sdpa")), counted(5, 3), "u0 > 1"),
    "register-cache-pytree": case(tiny_llama, _WORDS, "DynamicCache", {"input_ids": {1: Dim.DYNAMIC}}),
    "register-cache-pytree-fixed": case(
        sliding_mistral, [(after_prompt(12)[1], after_prompt(12)[0])], "DynamicCache", names=(CACHE,)
    ),
    "register-dataclass-pytree-fixed": case(Growing, [(torch.randn(1, 3), Store(torch.randn(2, 3), 7))], "Store"),
    "past-lru-cache": case(
        Placing, [(torch.randn(5, 2),), (torch.randn(2, 2),), (torch.randn(9, 2),)], "unhashable", (_FREE,)
    ),
    "without-messages": case(
        Speaking, [(torch.randn(rows, 3),) for rows in (4, 2, 7)], "unsupported format string|data-dependent", (_FREE,)
    ),
    "int-as-item": case(
        Scattering,
        [
            (torch.randn(5, 3), torch.tensor([0, 2, 1, 2, 0])),
            (torch.randn(4, 3), torch.tensor([3, 3, 0, 1])),
            (torch.randn(2, 3), torch.tensor([0, 0])),
        ],
        "data-dependent",
        (_FREE, _FREE),
    ),
    "constants-as-numbers": case(
        Stepping, [(torch.randn(5, 2),), (torch.randn(2, 2),), (torch.randn(9, 2),)], "data-dependent", (_FREE,)
    ),
    "causal-flag-as-mask": case(
        Looking,
        [(torch.randn(2, new, 4), torch.randn(2, old, 4)) for new, old in ((3, 5), (1, 4), (6, 2))],
        "must be bool, not SymBool",
        ({1: Dim.DYNAMIC}, {1: Dim.DYNAMIC}),
    ),
    "one-hot-as-comparison": case(
        Classing,
        [(torch.tensor([1, 3, 0]),), (torch.tensor([5, 0]),), (torch.tensor([0, 0, 0, 2]),)],
        "data-dependent",
        (_FREE,),
    ),
    "fake-kernels": case(Smoothing, [(torch.randn(rows, 4),) for rows in (3, 5, 8)], "no fake impl", (_FREE,)),
    "index-as-item": case(
        Marking,
        [(torch.randn(rows, 4), torch.tensor(at)) for rows, at in ((3, 1), (5, 3), (2, -4))],
        "Could not extract specialized integer",
        (_FREE, None),
    ),
    "numbers-as-tensor": case(
        Scaling,
        [(torch.randn(rows, 4), torch.randn(high, wide)) for rows, high, wide in ((3, 5, 6), (5, 2, 9), (2, 6, 2))],
        "its data is not allocated yet",
        (_FREE, {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}),
    ),
    "list-as-tensor": case(
        Choosing,
        [
            (torch.randn(rows, 4), torch.tensor(chosen), torch.tensor(weights))
            for rows, chosen, weights in ((3, [0, 2], [2, 1, 1]), (5, [4, -1, 0, 0], [0, 3, 1, 5, 1]), (2, [1], [1, 0]))
        ],
        r"\.numpy\(\) is not supported",
        (_FREE, _FREE, _FREE),
    ),
    "gradients-as-operators": case(Sloping, [(torch.randn(rows, 4),) for rows in (3, 5, 1)], "fake tensor", (_FREE,)),
    "einsum-path-of-example": case(
        Chained,
        [(torch.randn(rows, 4), torch.randn(4, inner), torch.randn(inner, 2)) for rows, inner in ((3, 5), (7, 6))],
        "Constraints violated",
        (_FREE, {1: Dim.DYNAMIC}, _FREE),
    ),
    "equal-as-item": case(
        Selecting,
        [
            (torch.randn(5, 2), torch.ones(5, 2)),
            (torch.ones(2, 2), torch.ones(2, 2)),
            (torch.randn(9, 2), torch.ones(9, 2)),
        ],
        r"aten\.equal",
        ({0: Dim("rows")}, {0: Dim("rows")}),
    ),
    "register-pytree-keys": case(
        Joining,
        [(Pair(torch.randn(3), torch.randn(3)),), (Pair(torch.randn(5), torch.randn(5)),)],
        "flatten_with_keys_fn",
        ([_FREE, _FREE],),
    ),
    "separate-inputs": case(
        Differing,
        [([torch.ones(3)] * 2,), ([torch.randn(5), torch.randn(5)],)],
        "nobody reads",
        ([_FREE, _FREE],),
        export=reading_all,
    ),
    "shapes-as-inputs": case(
        Summing,
        [([torch.randn(3), torch.randn(3)], None), ([torch.randn(5), torch.randn(5)], None)],
        "mismatch between the structure",
        {"pair": (_FREE, _FREE), "shift": _FREE},
    ),
    "register-dataclass-pytree": case(Answering, [(torch.randn(3),), (torch.randn(5),)], "Answer", (_FREE,)),
    "stateful-attr-reset": case(
        used_before, [(torch.randn(3),), (torch.randn(5),)], "Constraints violated", (_FREE,), eager=Remembering
    ),
    "flat-signature": case(
        Bundling,
        [(torch.randn(3), torch.randn(3)), (torch.randn(5), torch.randn(5))],
        "AssertionError|dynamic_shapes",
        {"x": _FREE, "kwargs": {"scale": _FREE}},
        names=("scale",),
        mended=">=2.14",  # dynamic shapes of keywords in **kwargs are matched by name
    ),
    "no-grad": case(Filling, [(torch.randn(3, 4),), (torch.randn(5, 4),)], "requires grad", (_FREE,)),
    "keyword-names": case(
        Relations, [(torch.randn(3, 4),), (torch.randn(5, 4),)], "invalid syntax", (_FREE,), export=made_a_module
    ),
    "deeper-recursion": case(lambda: Nested(130), [(torch.randn(3, 4),), (torch.randn(5, 4),)], "recursion", (_FREE,)),
    "non-strict": case(Odd, [(torch.randn(3),), (torch.randn(5),)], "Unsupported|getframe", (_FREE,), strict=True),
    "strict": case(
        Listing,
        [(torch.randn(()), torch.ones(4).bool())],
        "vmap|item",
        mended=">=2.14",  # an index of no dimensions stays a tensor inside torch.vmap
    ),
    "defer-asserts": case(
        Counting,
        [(torch.randn(6), torch.randn(12)), (torch.randn(9), torch.randn(27))],
        "Constraints violated|specialized|not always",
        ({0: Dim("a")}, {0: Dim("b")}),
    ),
    "size-oblivious": case(Doubling, [(torch.randn(1, 2),), (torch.randn(5, 2),)], "specialized|0/1", (_FREE,)),
    "suggested-relations": case(
        Shifting,
        [(torch.randn(3), torch.randn(4)), (torch.randn(5), torch.randn(6))],
        "Suggested fixes",
        ({0: Dim("dx")}, {0: Dim("dy")}),
    ),
    "suggested-constants": case(Projecting, [(torch.randn(3, 4),)], "Suggested fixes", ({1: Dim("width")},)),
    "auto-dims": case(Projecting, [(torch.randn(3, 4),)], "specialized|Constraints", ({1: Dim.DYNAMIC},)),
    "frozen-values": case(Looping, [(torch.randn(3), torch.tensor([[1, 2, 3]]))], "data-dependent"),
    "static-dim": case(Projecting, [(torch.randn(3, 4),)], "specialized|Constraints", ({1: Dim.DYNAMIC},)),
}
