"""Event streams made by hand: small ones, and one in the likeness of a scan of the full Qwen2.5-VL-3B (837 modules)."""

from __future__ import annotations

from collections.abc import Iterator

from exportdoctor.core.failure.finding import ExceptionRecord, Finding, KnownIssueRecord, Repro, ShimTry
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.protocol.scan import CallFact, Captured, InputFact, ModuleFact, Opened
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, Outcome, OutcomeStatus, SymbolOrigin
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import Alternative, Prescription, Proof, Step
from exportdoctor.core.scan_options import ScanOptions

START = 1_700_000_000.0
FULL_ATTENTION = (7, 15, 23, 31)
BLOCK = {
    "": "Qwen2_5_VLVisionBlock",
    ".norm1": "Qwen2RMSNorm",
    ".norm2": "Qwen2RMSNorm",
    ".attn": "Qwen2_5_VLVisionAttention",
    ".attn.qkv": "Linear",
    ".attn.proj": "Linear",
    ".mlp": "Qwen2_5_VLMLP",
    ".mlp.gate_proj": "Linear",
    ".mlp.up_proj": "Linear",
    ".mlp.down_proj": "Linear",
    ".mlp.act_fn": "SiLU",
}
LAYER = {
    "": "Qwen2_5_VLDecoderLayer",
    ".self_attn": "Qwen2_5_VLAttention",
    ".self_attn.q_proj": "Linear",
    ".self_attn.k_proj": "Linear",
    ".self_attn.v_proj": "Linear",
    ".self_attn.o_proj": "Linear",
    ".mlp": "Qwen2MLP",
    ".mlp.gate_proj": "Linear",
    ".mlp.up_proj": "Linear",
    ".mlp.down_proj": "Linear",
    ".mlp.act_fn": "SiLU",
    ".input_layernorm": "Qwen2RMSNorm",
    ".post_attention_layernorm": "Qwen2RMSNorm",
}
AROUND = {
    "": "Qwen2_5_VLForConditionalGeneration",
    "model": "Qwen2_5_VLModel",
    "model.visual": "Qwen2_5_VisionTransformer",
    "model.visual.patch_embed": "Qwen2_5_VisionPatchEmbed",
    "model.visual.patch_embed.proj": "Conv3d",
    "model.visual.rotary_pos_emb": "Qwen2_5_VisionRotaryEmbedding",
    "model.visual.blocks": "ModuleList",
    **{f"model.visual.blocks.{index}{name}": kind for index in range(32) for name, kind in BLOCK.items()},
    "model.visual.merger": "Qwen2_5_VLPatchMerger",
    "model.visual.merger.ln_q": "Qwen2RMSNorm",
    "model.visual.merger.mlp": "Sequential",
    "model.visual.merger.mlp.0": "Linear",
    "model.visual.merger.mlp.1": "GELU",
    "model.visual.merger.mlp.2": "Linear",
    "model.language_model": "Qwen2_5_VLTextModel",
    "model.language_model.embed_tokens": "Embedding",
    "model.language_model.layers": "ModuleList",
    **{f"model.language_model.layers.{index}{name}": kind for index in range(36) for name, kind in LAYER.items()},
    "model.language_model.norm": "Qwen2RMSNorm",
    "model.language_model.rotary_emb": "Qwen2_5_VLRotaryEmbedding",
    "lm_head": "Linear",
}

WINDOWS = Finding(
    id="F1",
    part="full",
    module="model.visual",
    module_class="Qwen2_5_VisionTransformer",
    own_code=True,
    function="get_vision_window_index",
    file="/opt/venv/lib/python3.11/site-packages/transformers/vision_utils.py",
    line=162,
    source="            grid_t, grid_h, grid_w = int(grid_t), int(grid_h), int(grid_w)",
    kind=FailureKind.DATA_DEPENDENT_VALUE,
    op=None,
    expression="int(grid_t)",
    signature="1f0c2b7d9a3e",
    exception=ExceptionRecord(
        type="torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
        message="Could not extract specialized integer from data-dependent expression u0 (unhinted: u0).\nMore lines.",
    ),
    stack=(
        Frame(
            file="/opt/venv/lib/python3.11/site-packages/torch/export/__init__.py",
            line=311,
            function="export",
        ),
        Frame(
            file="/opt/venv/lib/python3.11/site-packages/transformers/vision_utils.py",
            line=162,
            function="get_vision_window_index",
            source="grid_t, grid_h, grid_w = int(grid_t), int(grid_h), int(grid_w)",
            module="model.visual",
            user=True,
            expression="int(grid_t)",
        ),
    ),
    known_issues=(
        KnownIssueRecord(
            id="huggingface/transformers#41992",
            link="https://github.com/huggingface/transformers/issues/41992",
        ),
    ),
    repro=Repro(path="repro-F1.py", lines=9, imports=("torch",), verified=True),
    shims_tried=(ShimTry(shim="vision-geometry-outside", result="moved", next="F2"),),
    origins=(
        SymbolOrigin(
            symbol="u0",
            op="aten._local_scalar_dense",
            frame=Frame(
                file="/opt/venv/lib/python3.11/site-packages/transformers/vision_utils.py",
                line=161,
                function="get_vision_window_index",
                source="for grid_t, grid_h, grid_w in grid_thw.tolist():",
            ),
        ),
    ),
    modules=("model.visual",),
    log="logs/3f2a.txt",
)
ATTENTION = Finding(
    id="F2",
    part="full",
    module="model.visual.blocks.0.attn",
    module_class="Qwen2_5_VLVisionAttention",
    own_code=True,
    function="sdpa_attention_forward",
    file="/opt/venv/lib/python3.11/site-packages/transformers/integrations/sdpa_attention.py",
    line=159,
    source="    is_causal = query.shape[2] > 1 and attention_mask is None and is_causal",
    kind=FailureKind.DATA_DEPENDENT_GUARD,
    op=None,
    expression="query.shape[2] > 1",
    signature="77aa01c3e5d2",
    exception=ExceptionRecord(
        type="torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
        message="Could not guard on data-dependent expression u0 > 1 (unhinted: u0 > 1).",
    ),
    modules=tuple(f"model.visual.blocks.{index}.attn" for index in range(32) if index not in FULL_ATTENTION),
)


def started(*, run: str = "20231114-221320-qwen2.5-vl-3b-x7", ref: str = "Qwen2.5-VL-3B") -> ev.RunStarted:
    """The first event of a run."""
    return ev.RunStarted(
        at=START,
        run=run,
        target=TargetRef(ref=ref, parts=("full",)),
        options=ScanOptions(exhaustive=True),
        version="0.1.0",
        command=("exportdoctor", "scan", ref),
        title=ref,
    )


def opened(**changed: object) -> ev.TargetOpened:
    """The target in memory, as the real one would be."""
    facts: dict[str, object] = {
        "environment": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.23.0"},
        "parameters": 3_754_622_976,
        "weights": "fake",
        "device": "cpu",
        "dtype": "float32",
        "isolation": "fork",
        "seconds": 2.5,
        "parts": ("full",),
    }
    return ev.TargetOpened(at=START + 3, opened=Opened(**(facts | changed)))  # type: ignore[arg-type]


def captured(names: dict[str, str], *, part: str = "full", never: tuple[str, ...] = ("ModuleList",)) -> ev.PartCaptured:
    """A part with these submodules; a class in `never` is not called."""
    call = CallFact(
        question="q", group="k", inputs=(InputFact(path="args[0]", kind="Tensor", shape=(1, 8), dynamic=(1,)),)
    )
    modules = tuple(
        ModuleFact(fqn=fqn, class_name=kind, calls=() if kind in never else (call,)) for fqn, kind in names.items()
    )
    return ev.PartCaptured(
        at=START + 4,
        captured=Captured(part=part, title="sequence, patches dynamic", prefix="", seconds=1.4, modules=modules),
    )


def answered(fqn: str, *, part: str = "full", message: str = "") -> Iterator[ev.AnyEvent]:
    """An attempt that passes, or fails with `message`."""
    probe = Probe(part=part, fqn=fqn)
    failure = Failure(stage="export", exceptions=(ExceptionFact(type="RuntimeError", message=message),))
    outcome = Outcome(
        probe=probe.id,
        status=OutcomeStatus.FAILED if message else OutcomeStatus.PASSED,
        seconds=0.5,
        failure=failure if message else None,
        log=f"logs/{probe.id}.txt" if message else None,
    )
    yield ev.ProbeStarted(at=START + 5, probe=probe, pid=4242)
    yield ev.ProbeFinished(at=START + 6, probe=probe, outcome=outcome)


def judged(status: str, *fqns: str, part: str = "full", **more: object) -> ev.ModuleJudged:
    """A verdict for some modules."""
    return ev.ModuleJudged(at=START + 7, part=part, fqns=fqns, status=status, **more)  # type: ignore[arg-type]


def _vision_verdicts() -> Iterator[ev.AnyEvent]:
    """The blocks: the windowed ones fail through their attention, the others pass."""
    windowed = [index for index in range(32) if index not in FULL_ATTENTION]
    for indices, statuses in ((windowed, {"": "fails_child", ".attn": "fails_own"}), (FULL_ATTENTION, {})):
        for name in BLOCK:
            first, *rest = [f"model.visual.blocks.{index}{name}" for index in indices]
            status = statuses.get(name, "pass")
            finding = "F2" if status == "fails_own" else None
            yield from answered(first, message="u0 > 1" if status != "pass" else "")
            yield judged(status, first, finding=finding, seconds=0.5)
            yield judged(status, *rest, finding=finding, evidence="equal", same_as=first)


def qwen_scan() -> Iterator[ev.AnyEvent]:
    """An exhaustive scan of the whole model, static: ground truth's first table."""
    yield started()
    yield ev.StepStarted(at=START + 1, text="importing torch 2.13.0")
    yield opened()
    yield captured(AROUND)
    yield from answered("", message="Could not extract specialized integer")
    yield ev.FindingMade(at=START + 6, finding=WINDOWS)
    yield judged("fails_child", "", "model")
    yield judged("fails_own", "model.visual", finding="F1")
    yield ev.FindingMade(at=START + 6, finding=ATTENTION)
    yield from _vision_verdicts()
    around = [fqn for fqn, kind in AROUND.items() if ".blocks." not in fqn and kind != "ModuleList"]
    language = [fqn for fqn in around if fqn.startswith("model.language_model.layers.")]
    yield judged("pass", *[fqn for fqn in around[3:] if fqn not in language])
    first = [fqn for fqn in language if fqn.startswith("model.language_model.layers.0")]
    yield judged("pass", *first)
    yield judged("pass", *[fqn for fqn in language if fqn not in first], evidence="equal", same_as=first[0])
    yield ev.PartFinished(at=START + 11, part="full", verdict="fails", exporter="export", seconds=6.8, asked=36)
    yield ev.RunFinished(at=START + 12, exit_code=1, seconds=11.9, peak_rss_mb=710.0)


def passing_scan(ref: str = "models/tiny.py:build") -> Iterator[ev.AnyEvent]:
    """A model of three modules that exports as it is."""
    yield started(run="20231114-221320-tiny-build-aa", ref=ref)
    yield opened(parameters=120)
    yield captured({"": "Tiny", "first": "Linear", "second": "Linear"})
    yield from answered("")
    yield judged("pass", "")
    yield judged("pass", "first", "second", evidence="parent")
    yield ev.PartFinished(at=START + 8, part="full", verdict="passes", exporter="export", seconds=0.4, asked=1)
    yield ev.RunFinished(at=START + 9, exit_code=0, seconds=3.2, peak_rss_mb=400.0)


def cured_part() -> ev.PartFinished:
    """The end of a part that two shims cure."""
    return ev.PartFinished(
        at=START + 11,
        part="full",
        verdict="cured",
        exporter="export",
        seconds=20.0,
        asked=36,
        prescription=Prescription(
            shims=("precompute-grid", "block-diagonal-attention"),
            soundness="signature",
            proof=Proof(
                inputs_tried=27,
                max_abs_diff=1e-7,
                stage="run",
                tolerance=1e-4,
                on="a small model with random weights",
                kinds={"example": 1, "called_again": 1, "others_between": 1, "sizes": 6, "values": 10, "segments": 8},
                refused=("12 x 16, 4, cu_seqlens = [0, 0, 12, 12]", "12 x 16, 4, cu_seqlens = [0, 1, 2, 12]"),
                refuses_values=True,
                notes=("the program returns what eager changes in its input past_key_values",),
            ),
            steps=(
                Step(shim="precompute-grid", title="Windows are computed outside", soundness="signature"),
                Step(
                    shim="block-diagonal-attention",
                    title="One attention with a mask",
                    soundness="precondition",
                    precondition="segments do not overlap",
                ),
            ),
            alternatives=(
                Alternative(
                    shims=("precompute-grid", "frozen-values"),
                    soundness="specialised",
                    why="less sound",
                    proof=Proof(inputs_tried=1, max_abs_diff=0.0, stage="run", on="a small model with random weights"),
                    steps=(
                        Step(
                            shim="frozen-values",
                            title="Values are frozen",
                            soundness="specialised",
                            precondition="the inputs hold the values of the example",
                        ),
                    ),
                ),
            ),
        ),
    )
