"""Runs an ONNX file in ONNX Runtime on torch tensors of any dtype.

Inputs are bound by address and outputs copied by address, because numpy has no bfloat16.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.versions import installed_versions
from exportdoctor.report.wording.export import no_dtype, no_element_type

_ELEMENTS: dict[torch.dtype, str] = {
    torch.float32: "FLOAT", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float64: "DOUBLE",
    torch.int64: "INT64", torch.int32: "INT32", torch.int16: "INT16", torch.int8: "INT8", torch.bool: "BOOL",
    torch.uint64: "UINT64", torch.uint32: "UINT32", torch.uint16: "UINT16", torch.uint8: "UINT8",
    torch.complex64: "COMPLEX64", torch.complex128: "COMPLEX128",
    torch.float8_e4m3fn: "FLOAT8E4M3FN", torch.float8_e4m3fnuz: "FLOAT8E4M3FNUZ",
    torch.float8_e5m2: "FLOAT8E5M2", torch.float8_e5m2fnuz: "FLOAT8E5M2FNUZ", torch.float8_e8m0fnu: "FLOAT8E8M0",
}  # fmt: skip
FLOATS_OF_8_BITS = frozenset(dtype for dtype in _ELEMENTS if dtype.is_floating_point and dtype.itemsize == 1)
_KINDS = {f"tensor({name.lower()})": dtype for dtype, name in _ELEMENTS.items()}
"""By what ONNX Runtime writes for the type of a value."""

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OnnxSession:
    """A loaded file, or its bytes; `save_as` gets the graph that runs, in a session that runs slower. Raises what ONNX
    Runtime raises if it cannot load it.

    `inputs` and `outputs` are their names, in order.
    """

    def __init__(
        self, model: Path | bytes, *, device: str = "cpu", optimise: bool = True, save_as: Path | None = None
    ) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4  # errors are raised as exceptions
        options.intra_op_num_threads = max(1, torch.get_num_threads())
        if not optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.enable_cpu_mem_arena = False  # it would keep what each node made: every transposed weight, say
        if save_as is not None:
            options.optimized_model_filepath = str(save_as)
            # a protobuf message ends at 2 GiB, and is held twice while it is written
            options.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name", f"{save_as.name}.data"
            )
            options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
            options.add_session_config_entry("session.disable_prepacking", "1")  # else each weight is held twice
        source = str(model) if isinstance(model, Path) else model
        self.device, self.file = device, model if isinstance(model, Path) else None
        self._session = ort.InferenceSession(source, options, providers=providers(device))
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = 4
        # onnxruntime 1.31 looks this up in each run, and raises inside where it is absent; -1 is without a CUDA graph
        self._run_options.add_run_config_entry("gpu_graph_id", "-1")
        self.inputs = tuple(one.name for one in self._session.get_inputs())
        self.outputs = tuple(one.name for one in self._session.get_outputs())
        self.providers = tuple(self._session.get_providers())
        refuse_other_provider(device, self.providers)

    @property
    def input_dtypes(self) -> tuple[torch.dtype | None, ...]:
        """Their dtypes, None where torch has none."""
        return tuple(_KINDS.get(one.type) for one in self._session.get_inputs())

    @functools.cached_property
    def output_types(self) -> tuple[str, ...]:
        """As ONNX Runtime writes them: `tensor(float)`."""
        return tuple(one.type for one in self._session.get_outputs())

    @property
    def unknown_output(self) -> str:
        """The first type of an output for which torch has no dtype, '' if there is none."""
        return next((one for one in self.output_types if one not in _KINDS), "")

    def run(self, inputs: Sequence[torch.Tensor | float]) -> list[torch.Tensor]:
        """The outputs on the CPU, for inputs in the order of `inputs`. Raises what ONNX Runtime raises."""
        return self.run_named(dict(zip(self.inputs, inputs, strict=True)))

    def run_named(self, inputs: Mapping[str, torch.Tensor | float], *, copy: bool = True) -> list[torch.Tensor]:
        """As `run`, by name; names that the file does not have are left out.

        Without `copy` the outputs stay where ONNX Runtime has put them, as long as somebody holds them.
        """
        binding = self._session.io_binding()
        # alive until it has run; a dynamic size or number that the forward takes is a plain number
        kept = {name: torch.as_tensor(inputs[name]).detach().contiguous() for name in self.inputs}
        for name, tensor in kept.items():
            binding.bind_input(
                name, tensor.device.type, tensor.device.index or 0, element_type(tensor.dtype), list(tensor.shape),
                tensor.data_ptr() or ctypes.addressof(_NOTHING),
            )  # fmt: skip
        for name in self.outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, self._run_options)
        return [(_tensor if copy else _view)(value) for value in binding.get_outputs()]


_NOTHING = ctypes.c_byte(0)
"""Where a tensor without elements lies."""


def providers(device: str) -> list[str]:
    """The execution provider of a device. Raises UsageError where ONNX Runtime has none for it."""
    import onnxruntime as ort

    wanted = _PROVIDERS.get(device, _PROVIDERS["cpu"])
    if wanted not in ort.get_available_providers():
        raise UsageError(
            f"Device {device} needs {wanted}, which this ONNX Runtime does not have",
            hint='Install its GPU build: pip uninstall onnxruntime; pip install "exportdoctor[gpu]"',
        )
    return [wanted] if device == "cpu" else [wanted, _PROVIDERS["cpu"]]


def refuse_other_provider(device: str, loaded: Sequence[str]) -> None:
    """Raise UsageError where the provider of the device did not load: ONNX Runtime then runs on the CPU, silently."""
    wanted = _PROVIDERS.get(device, _PROVIDERS["cpu"])
    if wanted not in loaded:
        raise UsageError(
            f"{wanted} of {runtime_package()} did not load; {', '.join(loaded)} did",
            hint="Install the CUDA and cuDNN that it was built for, or use --device cpu",
        )


def runtime_package() -> str:
    """The package that onnxruntime is of, with its version: two have the same module."""
    names = ("onnxruntime-gpu", "onnxruntime")
    found = installed_versions(names)
    return next((f"{name} {found[name]}" for name in names if name in found), "onnxruntime")


def can_run_on(device: str) -> bool:
    """Whether this ONNX Runtime has an execution provider for the device."""
    import onnxruntime as ort

    return _PROVIDERS.get(device) in ort.get_available_providers()


@functools.cache
def element_type(dtype: torch.dtype) -> int:
    """ONNX's number for a dtype of torch. Raises TypeError where it has none."""
    from onnx import TensorProto

    number = getattr(TensorProto, _ELEMENTS.get(dtype, ""), None)
    if number is None:
        raise TypeError(no_element_type(str(dtype)))
    return int(number)


@functools.cache
def torch_dtypes() -> dict[int, torch.dtype]:
    """The dtype of torch for a number of ONNX's; older releases of onnx do not have all of them."""
    from onnx import TensorProto

    return {element_type(dtype): dtype for dtype, name in _ELEMENTS.items() if hasattr(TensorProto, name)}


def _dtype_of(number: int) -> torch.dtype:
    from onnx import TensorProto

    if number not in torch_dtypes():
        raise TypeError(no_dtype(TensorProto.DataType.Name(number).lower()))
    return torch_dtypes()[number]


def _view(value: Any) -> torch.Tensor:
    """A tensor of ONNX Runtime's on the CPU, in its own memory; `value` lives as long as the tensor's storage."""
    shape, dtype = tuple(value.shape()), _dtype_of(value.element_type())
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    memory: Any = (ctypes.c_byte * size).from_address(value.data_ptr())
    memory.owner = value
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _tensor(value: Any) -> torch.Tensor:
    """A tensor of ONNX Runtime's on the CPU, copied."""
    made = torch.empty(tuple(value.shape()), dtype=_dtype_of(value.element_type()))
    if made.numel():
        ctypes.memmove(made.data_ptr(), value.data_ptr(), made.numel() * made.element_size())
    return made
