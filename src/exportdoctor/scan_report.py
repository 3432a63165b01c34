"""What `exportdoctor.scan` returns: the report's records, with what one does with them in Python or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from exportdoctor.core.errors import ExportdoctorError, UsageError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.report import PartRecord, Prescription, Report, TargetRecord
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report import render, wording
from exportdoctor.report.canvas import Style
from exportdoctor.report.explanation_page import Block, as_markdown, as_text, finding_blocks
from exportdoctor.report.live.progress import LineProgress, Progress
from exportdoctor.report.plain_text import render_summary

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.shims import ExportCall
    from exportdoctor.targets.factory.factory_plan import FactoryPlan


@dataclass(frozen=True)
class FindingExplanation:
    """Why a finding fails and how to rewrite its line. Prints as text, and shows as Markdown in a notebook."""

    finding: Finding
    blocks: tuple[Block, ...]

    def __repr__(self) -> str:
        return as_text(iter(self.blocks), Style())

    __str__ = __repr__

    def _repr_markdown_(self) -> str:
        return as_markdown(iter(self.blocks), level=3)


class ScanFinding(Finding, frozen=True, kw_only=True, dict=True):
    """A finding of a module that was in memory."""

    def __repr__(self) -> str:
        return wording.summary_lines(self._report())[0]

    def __str__(self) -> str:
        return "\n".join(
            (wording.title(self, self._report()), *(f"  {line}" for line in wording.story(self, self._report().run)))
        )

    def explain(self, *, rewrites: bool = True) -> FindingExplanation:
        """Why it fails, and rewrites that work; those that fit its own line are tried in memory, unless `rewrites` is
        False. Files are not changed. Raises TargetError where the module can no longer be built or run."""
        from exportdoctor.engine.cure.try_rewrites import proposals, try_rewrites
        from exportdoctor.process.launcher import Fork

        plan: FactoryPlan | None = vars(self).get("plan")
        proposed = proposals(self)
        if rewrites and proposed and plan is not None:
            refuse_unforkable()
            target = TargetRef(ref=plan.ref, options=BuildOptions())
            proposed = tuple(try_rewrites(self, target, vars(self)["options"], Fork(plan)))
        told = msgspec.structs.replace(self, rewrites=proposed)
        return FindingExplanation(told, tuple(finding_blocks(told, self._report())))

    def _report(self) -> Report:
        return Report(target=TargetRecord(ref=""), findings=(self,))


class ScanPrescription(Prescription, frozen=True, kw_only=True, dict=True):
    """Shims with which a module that was in memory exports."""

    def __repr__(self) -> str:
        sound = wording.soundness(self.soundness)
        return " · ".join(filter(None, (f"{' + '.join(self.shims)} ({sound})", wording.proof(self))))

    __str__ = __repr__

    @contextmanager
    def apply(
        self,
        module: nn.Module | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        dynamic_shapes: Any = None,
    ) -> Iterator[ExportCall]:
        """Hold the shims around an export: `with prescription.apply() as call: program = call.export()`.

        Without arguments it is the call that was scanned. Inputs of the model become inputs of the program by
        `call.convert((args, kwargs))`. Raises UsageError where the report has lost the module (it was copied, say).
        """
        from exportdoctor.shims import ExportCall, ExportOptions, apply_shims, find

        plan: FactoryPlan | None = vars(self).get("plan")
        part: PartRecord | None = vars(self).get("part")
        if module is not None:
            given: dict[str, Any] = {
                "args": tuple(args),
                "kwargs": dict(kwargs or {}),
                "dynamic_shapes": dynamic_shapes,
            }
        elif plan is not None:
            given = dict(plan.call())
            module = given.pop("module")
        else:
            raise UsageError("This report no longer knows the module", hint="Give it: apply(module, args, kwargs)")
        options: ScanOptions = vars(self).get("options", ScanOptions())
        call = ExportCall(module=module, **given, options=ExportOptions(strict=options.exporter == "export-strict"))
        names = wording.shims_to_apply(part) if part is not None else self.shims
        places = {
            f"static-dim:{axis}": {axis: step.places} for step in self.steps for axis in [_axis(step.shim)] if axis
        }
        shims = [find(name, files=options.shim_files, axes=places.get(name)) for name in names]
        with apply_shims(shims, call) as changed:
            yield changed


def _axis(shim: str) -> str:
    kind, _, axis = shim.partition(":")
    return axis if kind == "static-dim" else ""


class ScanPart(PartRecord, frozen=True, kw_only=True):
    """The part of a module that was in memory: there is one."""

    prescription: ScanPrescription | None = None


class ScanReport(Report, frozen=True, kw_only=True, dict=True):
    """The report of a module that was in memory. `print` shows all of it, a notebook its end."""

    parts: tuple[ScanPart, ...] = ()
    findings: tuple[ScanFinding, ...] = ()

    @classmethod
    def of(cls, report: Report, plan: FactoryPlan, options: ScanOptions, folder: Path) -> ScanReport:
        """`report` with the module that it is about, and the folder of its run."""
        made = msgspec.convert(msgspec.to_builtins(report), cls)
        vars(made)["folder"] = folder
        for finding in made.findings:
            vars(finding).update(plan=plan, options=options)
        for part in made.parts:
            if part.prescription is not None:
                vars(part.prescription).update(plan=plan, part=part, options=options)
        return made

    def __repr__(self) -> str:
        return "\n".join((" · ".join(wording.headline(self)), render_summary(self, Style()).strip("\n")))

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def text(self, *, width: int = 100, colour: bool = False) -> str:
        """The whole report as text of at most `width` columns."""
        return render(self, "text", Style(width=max(40, width), colour=colour))

    def html(self) -> str:
        """The whole report as one HTML page that needs nothing else, with inputs, attempts and logs of its run."""
        from exportdoctor.report.page.run_material import gather_material
        from exportdoctor.store.runs import read_run

        try:
            run = read_run(vars(self)["folder"])
            material = gather_material(run.events, run.path)
        except (ExportdoctorError, KeyError, OSError):
            material = None
        return render(self, "html", material=material)

    def _repr_html_(self) -> str:
        """A verdict for each part, a line for each failure, and the cure."""
        rows = []
        for part in self.parts:
            found = sum(finding.part == part.name for finding in self.findings)
            symbol = wording.SYMBOLS[wording.VERDICT_STATUS[part.verdict] if part.complete else "not_asked"]
            verdict = f"{symbol} {wording.verdict(part, found)}"
            rows.append((part.name, part.title, verdict, wording.cure(part), wording.proof(part.prescription)))
        table = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        lines = "".join(f"<li>{_text(line)}</li>" for line in wording.summary_lines(self))
        notes = "".join(f"<p>{_text(note)}</p>" for note in (*self.notes, wording.cost(self)))
        code = "".join(_fold(wording.cure_title(one), wording.prescription_code(one)) for one in self.parts)
        head = _text(" · ".join(wording.headline(self)))
        return (
            f"<div><b>{head}</b><table>{table}</table><ul>{lines}</ul>{code}"
            f"{_fold('The whole report', self.text())}{notes}</div>"
        )


def _text(text: str) -> str:
    return escape(wording.plain(text))


def _cell(text: str) -> str:
    return f'<td style="text-align: left; padding: 2px 12px 2px 0">{_text(text)}</td>'


def _fold(title: str, text: str) -> str:
    """Text that opens on a click; nothing where there is none."""
    return f"<details><summary>{_text(title)}</summary><pre>{_text(text)}</pre></details>" if text else ""


@contextmanager
def progress_here(*, shown: bool | None) -> Iterator[Progress]:
    """The display that suits a Python session: live in a notebook with widgets and on a terminal, else lines."""
    from importlib.util import find_spec

    notebook = "ipykernel" in sys.modules
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if shown is False or sys.stderr is None or (shown is None and not notebook and not terminal):
        display = Progress()
    elif terminal or (notebook and find_spec("ipywidgets") is not None):
        from exportdoctor.report.live.live_display import LiveDisplay

        display = LiveDisplay(sys.stderr)
    else:
        display = LineProgress(sys.stderr)
    with display:
        yield display


def refuse_unforkable() -> None:
    """Raise UsageError where attempts cannot be made in forks: a CUDA context does not survive one."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise UsageError(
            "This process has initialized CUDA and cannot be forked",
            hint="Write a factory that builds the module, and run: exportdoctor scan FILE.py:FACTORY --device cuda",
        )
