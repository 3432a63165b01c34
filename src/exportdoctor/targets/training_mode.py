"""Modules that compute otherwise in training mode than in eval mode."""

from __future__ import annotations

from torch import nn

from exportdoctor.core.failure.frames import is_defined_in_torch

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


def depends_on_mode(module: nn.Module) -> bool:
    """Whether its class has another forward in training mode: dropout, batch norm, or code that reads `training`."""
    kind = type(module)
    return isinstance(module, (*_DROPOUTS, *_NORMS, nn.RReLU)) or (
        not is_defined_in_torch(kind) and "training" in kind.forward.__code__.co_names
    )


def in_training_mode(module: nn.Module) -> tuple[str, ...]:
    """The paths and classes of torch's layers inside that drop values or normalise by the batch, as in training."""
    return tuple(
        f"{path} ({type(one).__name__})".lstrip()
        for path, one in module.named_modules()
        if one.training and _acts_in_training(one)
    )


def _acts_in_training(module: nn.Module) -> bool:
    """Whether it computes otherwise than it would in eval mode. Code of users may read `training` and do the same."""
    if isinstance(module, _NORMS):
        return module.track_running_stats
    if isinstance(module, _DROPOUTS):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return (isinstance(module, nn.MultiheadAttention) and module.dropout > 0) or isinstance(module, nn.RReLU)
