"""Modules with loops over the rows of their inputs, most of them recurrences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Mixer(nn.Module):
    """As the slow forward of Mamba: rows of three tensors, a list that is stacked, and the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.inner(x).transpose(1, 2)
        decay, seen = torch.sigmoid(hidden)[..., None], hidden.transpose(1, 2)[:, :, :2]
        state = hidden.new_zeros(x.shape[0], 6, 2)
        outputs = []
        for index in range(x.shape[1]):
            state = decay[:, :, index, :] * state + hidden[:, :, index, None]
            output = torch.matmul(state.to(x.dtype), seen[:, index, :].unsqueeze(-1))
            outputs.append(output[:, :, 0])
        output = torch.stack(outputs, dim=-1)
        return self.outer(output.transpose(1, 2)), state


class Gated(nn.Module):
    """As RG-LRU: each step writes its row of a tensor that was made before."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, state, written = torch.sigmoid(self.gate(x)), torch.zeros(x.shape[0], 4), torch.zeros_like(x)
        for t in range(x.shape[1]):
            state = gate[:, t].to(torch.float32) * state
            state = state + x[:, t].to(torch.float32)
            written[:, t] = state.to(x.dtype)
        return written, state


class Cell(nn.Module):
    """A cell of submodules behind a method, from the second row on."""

    def __init__(self) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(4, 4), nn.Linear(4, 4)

    def step(self, row: Tensor, state: Tensor) -> Tensor:
        if row.dim() != 2:
            raise ValueError(f"{row.dim()} dimensions")
        return torch.tanh(self.of_input(row) + self.of_state(state))

    def forward(self, x: Tensor) -> Tensor:
        state, rows = torch.zeros(x.shape[0], 4), []
        for t in range(1, x.size(1)):
            state = self.step(x[:, t : t + 1].squeeze(1), state)
            rows.append(state[:, None])
        return torch.cat(rows, dim=1)


class Decoder(nn.Module):
    """A cell of torch over the rows that `unbind` gives, behind layers of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 5), nn.Linear(5, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.GELU()])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell, rows = x.new_zeros(x.shape[0], 5), x.new_zeros(x.shape[0], 5), []
        for row in x.unbind(1):
            for layer in self.layers:
                row = layer(row)
            hidden, cell = self.cell(row, (hidden, cell))
            rows.append(self.head(hidden))
        return torch.stack(rows, 1), cell


class Listed(nn.Module):
    """Lists that begin with a row, whose last row is the state, and whose stack takes their name."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states: Any = [x[:, 0] * 0]
        for row in x.transpose(0, 1):
            states.append(torch.tanh(states[-1] + row))
        last, states = states[-1], torch.stack(states[1:], dim=1)
        pieces: Any = []
        for piece in states.split(1, dim=1):
            last = last * 0.5 + piece[:, 0]
            pieces += [last[:, None] + piece]
        pieces = torch.cat(pieces[::-1], dim=1)
        return pieces, last


class Returns(nn.Module):
    """What follows each row, from the last backwards, and back again from the first."""

    def forward(self, x: Tensor) -> Tensor:
        state, after = x.new_zeros(x.shape[0], x.shape[2]), torch.zeros_like(x)
        for t in reversed(range(x.shape[1])):
            state = state * 0.9 + x[:, t]
            after[:, t] = state
        rows = []
        for t in range(x.shape[1]):
            state = state * 0.5 + after[:, t]
            rows.append(state)
        return torch.stack(rows, 1)


class Advantages(nn.Module):
    """Each step reads the next row, too, and the one before."""

    def forward(self, x: Tensor) -> Tensor:
        last, found = x[:, 0] * 0, torch.zeros_like(x)
        for t in reversed(range(x.shape[1] - 1)):
            last = x[:, t] + 0.9 * x[:, t + 1] + 0.5 * last
            found[:, t] = last
        steps = []
        for t in range(1, x.shape[1]):
            last = last * 0.5 + found[:, t] - found[:, t - 1]
            steps.append(last)
        return torch.stack(steps, 1)


class Membrane(NamedTuple):
    voltage: Tensor
    current: Tensor


class Spiking(nn.Module):
    """State in a named tuple, behind a method whose module is not called `self`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def step(this, row: Tensor, state: Membrane) -> tuple[Tensor, Membrane]:
        current = state.current * 0.8 + this.layer(row)
        voltage = state.voltage * 0.9 + current
        spikes = (voltage > 1).float()
        return spikes, Membrane(voltage - spikes, current)

    def forward(this, x: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros(x.shape[0], 4)
        state, rows = Membrane(zero, zero), []
        for t in range(x.shape[1]):
            spikes, state = this.step(x[:, t], state)
            rows.append(spikes)
        return torch.stack(rows, 1), state.voltage


class Stacked(nn.Module):
    """Cells of torch above one another, their state in a tuple of tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(4, 4), nn.LSTMCell(4, 4)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros(x.shape[0], 4)
        state, rows = ((zero, zero), (zero, zero)), []
        for t in range(x.shape[1]):
            first = self.cells[0](x[:, t], state[0])
            state = (first, self.cells[1](first[0], state[1]))
            rows.append(state[1][0])
        return torch.stack(rows, 1), state[0][1]


class Layers(nn.Module):
    """The state of each layer in a list, which begins with None; in a loop over numbers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(4, 4), nn.LSTMCell(4, 4)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, rows = [None] * len(self.cells), []
        for weight, shift in zip([0.5, 0.25], [1.0, 2.0], strict=True):
            total = x[:, 0] * weight
            for t in range(x.shape[1]):
                total = total * 0.5 + x[:, t] * shift
            x = x + total[:, None]
        for row, gate in zip(x.unbind(1), x.sigmoid().unbind(1), strict=False):
            row = row * gate
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(row, states[layer])
                row, _ = states[layer]  # type: ignore[misc]
            rows.append(row)
        return torch.stack(rows, 1), states[-1][1]  # type: ignore[index]


class Sums(nn.Module):
    """Sums that begin as a number and as a tensor, to which each step adds."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total: Any = 0
        decayed, state = torch.zeros(x.shape[0], 4), x[:, 0] * 0
        for t in range(x.shape[1]):
            state = state * 0.5 + x[:, t]
            total += x[:, t].tanh()
            decayed *= 0.5
            decayed += total * state
        later: Any = 0
        for t in reversed(range(x.shape[1])):
            later += x[:, t] * 0.5
        return total, decayed + later


class Pointing(nn.Module):
    """Each step points at a row, and gives the batch's size to several calls."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, steps, width = x.shape
        state, rows = x.new_zeros(batch, width), []
        for t in range(steps):
            place = (x @ state.unsqueeze(-1)).squeeze(-1).argmax(-1)
            picked = x.gather(1, place.view(batch, 1, 1).expand(batch, 1, width)).squeeze(1)
            state = torch.tanh(picked + x[:, t].reshape(batch, width, 1).view(batch, width))
            rows.append(torch.cat([state, torch.ones(batch, 1)], 1))
        return state, torch.stack(rows, 1)


class InPlace(nn.Module):
    """A layer that writes into an item of the state, which is also a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        states, rows = [x[:, 0] * 0], []
        for t in range(x.shape[1]):
            states[0] = states[0] * 0.5 + x[:, t]
            rows.append(states[0])
        return self.layer(states[0]) + torch.stack(rows)


class BothWays(nn.Module):
    """Rows from the last one on, put before those of their list, and written from the end on; a dict of state."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        steps = x.shape[1]
        state = {"first": x[:, 0] * 0, "last": x[:, 0] * 0}
        written = torch.zeros_like(x)
        behind: list[Tensor] = []
        for t in range(steps):
            state["first"] = state["first"] * 0.5 + x[:, t]
            state["last"] = state["last"] * 0.5 + x[:, steps - 1 - t] - x[:, -t - 1].cos()
            behind.insert(0, state["last"])
            written[:, steps - (t + 1)] = state["first"]
        return torch.stack(behind, 1), written, state["first"]


class Between(nn.Module):
    """A loop over all rows but the first and last few."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for t in range(self.first, x.shape[1] - self.last):
            state = state * 0.5 + x[:, t]
        return state


def filtering(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A decorator with a loop of its own."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **{name: value for name, value in kwargs.items() if value is not None})

    return wrapped


class Decorated(nn.Module):
    @filtering
    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            state = state * 0.5 + x[:, t]
        return state


class Counting(nn.Module):
    """Its steps do more than compute."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            self.steps += 1
            state = state + x[:, t]
        return state


class Nested(nn.Module):
    """A list in the list of state has another name, by which it is changed."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = [x[:, 0] * 0]
        states: list[Any] = [inner, x[:, 0] * 0]
        for t in range(x.shape[1]):
            states[1] = states[1] * 0.5 + x[:, t]
        inner[0] = inner[0] + 5
        return states[0][0], states[1]


class Layered(nn.Module):
    """What its steps call depends on the module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            state = self.layer(state + x[:, t])
        return x + state[:, None]
