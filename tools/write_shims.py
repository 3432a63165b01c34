"""Writes docs/shims.md from the records: `python tools/write_shims.py > docs/shims.md`.

Our own shims are described in full. Those of other libraries depend on what is installed: the page says how to list
them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from exportdoctor.shims.own import OWN
from exportdoctor.shims.record import SOUNDNESS, SOUNDNESS_MEANS, Shim

_INTRODUCTION = """\
# Shims

A shim is a reversible change under which an export may pass: a record that says what it may cure, where it fits and how
sound it is, and a context manager that puts everything back. This page is generated from the records by
`python tools/write_shims.py > docs/shims.md`.

`exportdoctor shims list` shows all of them with those of other libraries, and whether they fit what is installed;
`exportdoctor shims show ID` shows the diff of one against what it replaces.
"""

_OTHERS = """\
## Shims of others

| provider | ids | what they are |
|---|---|---|
| transformers.registries | `attn:*`, `experts:*`, `attention-mask:*` | what a configuration can choose |
| transformers.exporters | `hf.*` | each entry of its registries: patches, preparers of inputs, graph fixes |
| onnx-diagnostic | `od.*` | each patch: torch (`od.torch.*`), transformers, caches, control flow |
| user | yours | files given with `--shims FILE`, and entry points `exportdoctor.shims` |

A provider that is missing, or a patch that no longer fits the installed versions, is listed with its reason and costs a
run nothing.

## Your own

```python
from contextlib import contextmanager

from exportdoctor.shims import Cure, NotApplicable, Shim


@contextmanager
def enter(call):
    if not hasattr(call.module, "use_fast_path"):
        raise NotApplicable("the module has no fast path")
    before, call.module.use_fast_path = call.module.use_fast_path, False
    try:
        yield call                       # or call.with_inputs(...), call.with_options(...)
    finally:
        call.module.use_fast_path = before


SHIMS = (
    Shim(
        id="no-fast-path",
        title="The slow path, which has no kernel of its own",
        soundness="exact",
        enter=enter,
        cures=(Cure(kinds=("missing_fake_kernel",)),),
    ),
)
```

`enter` gets the call of `torch.export.export` and yields the one to make. A shim that changes the inputs does so with
`call.with_inputs(compute)`: `compute` gets the inputs by name and returns those to add, so that other inputs can be
turned into the program's later. A shim that raises, or that leaves something behind, is noticed and named. Its file may
import what lies beside it; `scan --shims FILE` names the file in the commands that it prints.
"""


def document(shims: tuple[Shim, ...] = OWN) -> str:
    """The page, ending with a newline."""
    return "\n".join(_lines(shims)).rstrip() + "\n"


def _lines(shims: tuple[Shim, ...]) -> Iterator[str]:
    yield _INTRODUCTION
    yield "## How sound\n"
    yield "| soundness | means |\n|---|---|"
    yield from (f"| *{name}* | {SOUNDNESS_MEANS[name]} |" for name in SOUNDNESS)
    yield "\n## Our own\n"
    yield "| id | soundness | what it does |\n|---|---|---|"
    yield from (f"| [`{shim.id}`](#{shim.id}) | *{shim.soundness}* | {shim.title} |" for shim in shims)
    for shim in shims:
        yield from _section(shim)
    yield f"\n{_OTHERS}"


def _section(shim: Shim) -> Iterator[str]:
    needs = ", ".join(f"{package} {wanted}".strip() for package, wanted in shim.needs.items())
    kinds = sorted({kind for cure in shim.cures for kind in cure.kinds})
    yield f"\n### {shim.id}\n"
    yield f"{shim.does}\n"
    yield f"- soundness: *{shim.soundness}*, {SOUNDNESS_MEANS[shim.soundness]}"
    if shim.precondition:
        yield f"- condition: {shim.precondition}"
    if kinds:
        yield f"- may cure: {', '.join(f'`{kind}`' for kind in kinds)}"
    yield f"- fits: {needs}"
    if shim.conflicts:
        yield f"- not together with: {', '.join(f'`{name}`' for name in shim.conflicts)}"
    yield f"- upstream: <{shim.link}>"
    if shim.retire:
        yield f"- can be retired when: {shim.retire}"


if __name__ == "__main__":
    sys.stdout.write(document())
