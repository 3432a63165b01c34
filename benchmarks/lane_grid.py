"""The tiny Qwen2.5-VL exported by torch alone: what the grid of docs/lanes.md is checked against.

`PYTHONPATH=LANE/site-packages python benchmarks/lane_grid.py` prints a line for each cell of that lane. It needs torch
and transformers only; each cell runs in a fork.
"""

import io
import json
import os
from pathlib import Path

import torch
import transformers

PRESET = Path(__file__).parents[1] / "src/exportdoctor/targets/presets/Qwen2.5-VL-3B-tiny.json"
DYNAMIC = torch.export.Dim.DYNAMIC


def build():
    """The model and, for each part, its module, its inputs and their dynamic dimensions."""
    torch.manual_seed(0)
    config = transformers.Qwen2_5_VLConfig(**json.loads(PRESET.read_text())["config"])
    model = transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    ids = torch.randint(10, 300, (2, 13))
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    free = {"input_ids": {0: DYNAMIC, 1: DYNAMIC}, "attention_mask": {0: DYNAMIC, 1: DYNAMIC}, "use_cache": None}
    vision = {"hidden_states": torch.randn(192, 1176), "grid_thw": torch.tensor([[1, 12, 16]])}
    return {
        "text": (model, text, free),
        "vision": (model.model.visual, vision, {"hidden_states": {0: DYNAMIC}, "grid_thw": None}),
    }


def export(part, how):
    """Export as torch's documentation says, and run the program; raises what torch raises."""
    module, inputs, shapes = part
    with torch.no_grad():
        module(**inputs)
        if how == "torchscript":
            torch.onnx.export(module, (), io.BytesIO(), kwargs=inputs, dynamo=False, verbose=False)
        else:
            program = torch.export.export(module, (), inputs, dynamic_shapes=shapes, strict=how == "strict")
            try:
                program.module()(**inputs)
            except Exception as error:
                raise RuntimeError(f"exports, and its program raises {type(error).__name__}: {error}") from error


def cell(part, how):
    """What one cell shows, in one line."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the TorchScript exporter prints whole graphs
        try:
            export(part, how)
            said = "passes"
        except BaseException as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 1000).decode()
    _, status = os.waitpid(pid, 0)
    return said or f"ended by signal {status}"


if __name__ == "__main__":
    parts = build()
    for how in ("export", "strict", "torchscript"):
        for name, part in parts.items():
            print(torch.__version__, transformers.__version__, name, how, cell(part, how), sep=" | ", flush=True)
