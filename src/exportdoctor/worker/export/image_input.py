"""An image encoder that takes a plain image: patches, positions and windows are computed inside the graph.

The closed forms here hold for an encoder whose patches come in merged blocks, row by row, with square windows over the
blocks. That they are this encoder's is checked against what it makes itself, on several grids, before they are used.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim

from exportdoctor.core.errors import UsageError
from exportdoctor.shims.own.vision_geometry import compute_geometry, takes_grid
from exportdoctor.targets import BuiltPart, Plan

if TYPE_CHECKING:
    from exportdoctor.targets.built import Inputs

_SEED = 11
_IMAGES = (2, 3, 2)
"""How many in each set of inputs; one where all sizes are fixed."""
_GRIDS = ((4, 8), (12, 16), (6, 22), (24, 2))
"""Height and width in merged blocks over two: with and without windows that are cut off."""


class PlainImage(torch.nn.Module):
    """`image` (N, channels, H, W), already resized and normalised; H and W are multiples of patch times merge.

    In eager it calls the encoder as it is, on patches and their grid. When exported, what the encoder would make of
    the grid is made of the sizes of the image.
    """

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        config: Any = encoder.config
        self.patch, self.merge = int(config.patch_size), int(config.spatial_merge_size)
        self.frames = int(getattr(config, "temporal_patch_size", 1))
        self.window = int(getattr(config, "window_size", 0)) // (self.patch * self.merge)
        self.names = tuple(compute_geometry(encoder, torch.tensor([[1, 2 * self.merge, 2 * self.merge]])))

    def around(self, encoder: torch.nn.Module) -> PlainImage:
        """The same wrapper for another encoder."""
        return PlainImage(encoder)

    def forward(self, image: torch.Tensor) -> Any:
        """What the encoder gives for these images, one after the other."""
        height, width = image.shape[2] // self.patch, image.shape[3] // self.patch
        patches = self.patches(image)
        if not torch.compiler.is_exporting():
            grid = torch.tensor([[1, height, width]] * image.shape[0], device=image.device)
            return self.encoder(patches, grid)
        count = image.shape[0]
        grid = torch.ones(count, 3, dtype=torch.int64, device=image.device)
        made = self.geometry(count, height // self.merge, width // self.merge, image.device)
        return self.encoder(patches, grid, **{name: made[name] for name in self.names})

    def patches(self, image: torch.Tensor) -> torch.Tensor:
        """(N * patches, channels * frames * patch * patch): merged blocks row by row, an image as equal frames."""
        count, channels, height, width = image.shape
        patch, merge = self.patch, self.merge
        rows, columns = height // (patch * merge), width // (patch * merge)
        blocks = image.reshape(count, channels, rows, merge, patch, columns, merge, patch)
        blocks = blocks.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6)
        blocks = blocks.expand(-1, -1, -1, -1, -1, -1, self.frames, -1, -1)
        return blocks.reshape(count * rows * columns * merge**2, channels * self.frames * patch**2)

    def geometry(self, count: Any, rows: Any, columns: Any, device: Any) -> dict[str, torch.Tensor]:
        """What the encoder makes of `count` grids of rows x columns merged blocks."""
        made = {
            "position_ids": self._positions(count, rows, columns, device),
            "cu_seqlens": (torch.arange(count + 1, device=device) * (rows * columns * self.merge**2)).to(torch.int32),
        }
        if self.window:
            made["window_index"], made["cu_window_seqlens"] = self._windows(count, rows, columns, device)
        return made

    def _positions(self, count: Any, rows: Any, columns: Any, device: Any) -> torch.Tensor:
        """int64 (patches, 2): row and column of each patch."""
        inner = torch.arange(self.merge, device=device)
        row = torch.arange(rows, device=device)[:, None] * self.merge + inner
        column = torch.arange(columns, device=device)[:, None] * self.merge + inner
        shape = (rows, columns, self.merge, self.merge)
        both = (row[:, None, :, None].expand(shape), column[None, :, None, :].expand(shape))
        return torch.stack([one.reshape(-1) for one in both], dim=-1).repeat(count, 1)

    def _windows(self, count: Any, rows: Any, columns: Any, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The blocks ordered by window, int64 (blocks,), and the windows' boundaries in patches, int32.

        Each boundary is there once for every block of its window: a number of windows would be a size that may be
        one, which no tracer leaves open. Two patches lie between the same boundaries either way.
        """
        window = self.window
        row, column = torch.arange(rows, device=device), torch.arange(columns, device=device)
        above, left = row // window * window, column // window * window
        tall = (rows - above).clamp(max=window)
        wide = (columns - left).clamp(max=window)
        place = above[:, None] * columns + tall[:, None] * left[None]
        ends = (place + tall[:, None] * wide[None]).reshape(-1)
        place = place + (row - above)[:, None] * wide[None] + (column - left)[None]
        image = torch.arange(count, device=device)[:, None] * (rows * columns)
        order = (image + torch.argsort(place.reshape(-1))[None]).reshape(-1)
        ends = (image + ends.sort().values[None]).reshape(-1) * self.merge**2
        return order, torch.cat([ends.new_zeros(1), ends]).to(torch.int32)


def with_image_input(part: BuiltPart, plan: Plan) -> BuiltPart:
    """The part with one input, `image`. Raises UsageError where its encoder is not of the kind that this can feed."""
    encoder = part.module
    if not takes_grid(encoder) or not hasattr(getattr(encoder, "config", None), "spatial_merge_size"):
        raise UsageError(
            f"Part {part.name} takes no image grid as an input, so it cannot take a plain image",
            hint="Use --image-input with --part vision, on transformers 5",
        )
    module = PlainImage(encoder).eval()
    _check(module)
    sizes = _sizes(plan, module.patch * module.merge)
    static = part.dynamic_shapes is None
    counts = (1, *_IMAGES[1:]) if static else _IMAGES
    sets = [_inputs(part, count, size) for count, size in zip(counts, sizes, strict=True)]
    names = {0: "images", 2: "height", 3: "width"}
    return dataclasses.replace(
        part,
        module=module,
        title=f"a plain image, {part.title}",
        prefix="",
        args=(),
        kwargs=sets[0][1],
        dynamic_shapes=None if static else {"image": dict.fromkeys(names, Dim.DYNAMIC)},
        more_inputs=() if static else tuple(sets[1:]),
        axes={} if static else {name: (f"image[{place}]",) for place, name in names.items()},
    )


def _check(module: PlainImage) -> None:
    """The closed forms must give what the encoder itself makes of a grid."""
    for rows, columns in _GRIDS:
        grid = torch.tensor([[1, rows * module.merge, columns * module.merge]] * 2)
        wanted = compute_geometry(module.encoder, grid)
        made = module.geometry(2, rows, columns, grid.device)
        wrong = [name for name, value in wanted.items() if name not in made or not _equal(made[name], value)]
        if wrong:
            raise UsageError(
                f"This encoder computes {', '.join(wrong)} from its grid in an unknown way",
                hint="Export it with patches and grid, without --image-input",
            )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dim() == 1 and one.dtype == torch.int32:  # boundaries
        one = one.unique_consecutive()
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def _sizes(plan: Plan, unit: int) -> list[tuple[int, int]]:
    """Height and width: those asked for, others around them, and a small one."""
    height, width = plan.options.image_size or (8 * unit, 8 * unit)
    return [(height, width), (max(unit, height - unit), width + unit), (3 * unit, 5 * unit)]


def _inputs(part: BuiltPart, count: int, size: tuple[int, int]) -> Inputs:
    first = next(
        value for value in part.kwargs.values() if isinstance(value, torch.Tensor) and value.is_floating_point()
    )
    config: Any = part.module.config
    channels: Any = getattr(config, "in_channels", None) or getattr(config, "in_chans", 3)
    values = torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(_SEED))
    return (), {"image": values.to(device=first.device, dtype=first.dtype)}
