"""Exports without torch: what is refused in one line, files that are whole or not there, and shims carried out."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exportdoctor.core.codec import encode
from exportdoctor.core.errors import StoreError, UsageError
from exportdoctor.core.protocol.export import ExportedFile, ExportRequest, ExportResult
from exportdoctor.core.protocol.scan import Opened
from exportdoctor.core.records.size_domain import SizeAxis, SizeCondition, SizeDomain
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.events import PartFinished, RunStarted, TargetOpened
from exportdoctor.core.run.report import ModuleRecord, PartRecord, Prescription
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.core.versions import installed_versions
from exportdoctor.export.export_part import stem_of_proof
from exportdoctor.export.find_prescription import find_prescription
from exportdoctor.export.install_files import check_output_path, draft_folder, install, write_draft
from exportdoctor.export.proof_file import ProofFile
from exportdoctor.export.shims_module import ModuleHeader, file_name, shims_module
from exportdoctor.process.start_module import CARRIED
from exportdoctor.report.wording import export_lines
from exportdoctor.shims import Shim, find, order_shims, registry
from exportdoctor.store.run_folder import RunFolder

TINY, CHAIN = "Qwen2.5-VL-3B-tiny", "precompute-grid+block-diagonal-attention"
ROOT = Path(__file__).parents[2]


def told(*arguments: str, blocked: str = "", path: str = "") -> tuple[int, list[str]]:
    """Exit code and lines on stderr of `exportdoctor export`; `blocked` cannot be imported."""
    block = f"sys.modules[{blocked!r}] = None; " if blocked else ""
    code = f"import sys; {block}from exportdoctor.cli.main import run; sys.exit(run({['export', *arguments]!r}))"
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), path, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "EXPORTDOCTOR_HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    return done.returncode, done.stderr.strip().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("Qwen2.5-VL-3B", "--to", "pt2"), "--weights random"),
        ((TINY, "--to", "pt2", "--shims", "precompute-gird"), "Did you mean 'precompute-grid'"),
        ((TINY, "--to", "pt2", "--shims", "strict+non-strict"), "cannot be combined"),
        ((TINY, "--to", "pt2", "--shims", "no-grad+no-grad"), "cannot be combined"),
        ((TINY, "--to", "pt2", "--shims", "none", "-o", "x.onnx"), "does not end in .pt2"),
        ((TINY, "--to", "pt2", "--shims", "none", "--split", "2"), "--split goes only with --to onnx"),
        ((TINY, "--to", "pt2", "--part", "vision"), f"exportdoctor scan {TINY} --part vision"),
        ((TINY, "--to", "pt2", "--part", "nose"), "nose"),
        ((TINY, "--to", "pt2", "--shims", "none", "--with-cache", "--image-input"), "two files, prefill and decode"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_built(arguments: tuple[str, ...], words: str) -> None:
    code, lines = told(*arguments)
    assert code == 2
    assert len(lines) == 1
    assert words in lines[0]


@pytest.mark.slow
def test_a_missing_onnxruntime_is_told_with_the_command_that_installs_it() -> None:
    code, lines = told(TINY, "--to", "onnx", "--shims", CHAIN, blocked="onnxruntime")
    assert (code, len(lines)) == (2, 1)
    assert "pip install 'exportdoctor[onnx]'" in lines[0]


def test_both_onnxruntime_packages_are_noticed(tmp_path: Path) -> None:
    for name in ("onnxruntime", "onnxruntime_gpu"):
        folder = tmp_path / f"{name}-1.30.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.30.0\n")
    code, lines = told(TINY, "--to", "onnx", "--shims", CHAIN, "--device", "cuda", path=str(tmp_path))
    assert (code, len(lines)) == (2, 1)
    assert "overwrite each other's files" in lines[0]


def test_no_prescription_is_told_with_the_scan_that_would_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="has not been scanned") as caught:
        find_prescription(TINY, "vision")
    assert f"exportdoctor scan {TINY} --part vision, or" in caught.value.hint
    monkeypatch.setenv(CARRIED, "/elsewhere")  # as under --python
    with pytest.raises(UsageError) as caught:
        find_prescription(TINY, "vision")
    assert f"exportdoctor scan {TINY} --part vision --python {sys.executable}, or" in caught.value.hint


@pytest.mark.parametrize(
    ("exporter", "versions", "said"),
    [
        ("export", {}, ""),
        ("export-strict", {}, "--exporter export-strict"),
        ("export", {"transformers": "4.1.0"}, "transformers 4.1.0, and here is"),
        ("export", {"torch": "2.1.0+cpu"}, "torch 2.1.0"),
        ("export", {"onnx-diagnostic": "0.0.1"}, "onnx-diagnostic 0.0.1"),
    ],
)
def test_a_prescription_holds_for_the_exporter_and_the_versions_that_it_was_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: str, versions: dict[str, str], said: str
) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path))
    here = {name: version.partition("+")[0] for name, version in installed_versions(("torch", "transformers")).items()}
    prescribed = Prescription(shims=("mask-without-vmap",), soundness="exact")
    part = PartRecord(name="text", verdict="cured", exporter=exporter, seconds=1, prescription=prescribed)
    with RunFolder.create(tmp_path / "runs" / "run") as folder:
        target = TargetRef(ref=TINY, parts=(), options=BuildOptions())
        folder.append(RunStarted(run="run", target=target, options=ScanOptions(), version="0"))
        folder.append(PartFinished(part="text", verdict="cured", exporter=exporter, seconds=1, asked=1))
    report = {"parts": [part], "environment": {**here, **versions}}
    (tmp_path / "runs" / "run" / "report.json").write_bytes(encode(report))
    if not said:
        assert find_prescription(TINY, "text").names == ("mask-without-vmap",)
        return
    with pytest.raises(UsageError) as caught:
        find_prescription(TINY, "text")
    assert f"was scanned with {said}" in caught.value.message


@pytest.mark.parametrize("prescribes", [False, True])
def test_a_part_that_fails_in_a_later_stage_is_exported_as_it_is_where_no_scan_knows_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prescribes: bool
) -> None:
    """`No scan found shims with which part default exports` was said of one that exports as it is."""
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path))
    found = Prescription(shims=("mask-without-vmap",), soundness="exact") if prescribes else None
    root = ModuleRecord(fqn="", class_name="M", status="fails_own", stages={"export": "pass", "translate": "fail"})
    fails = PartRecord(name="text", verdict="fails", exporter="export", seconds=1, modules=(root,))
    cured = PartRecord(name="text", verdict="cured", exporter="export", seconds=1, modules=(root,), prescription=found)
    for run, part in (("first", cured if prescribes else fails), ("second", fails)):
        with RunFolder.create(tmp_path / "runs" / run) as folder:
            folder.append(RunStarted(run=run, target=TargetRef(ref=TINY), options=ScanOptions(), version="0"))
            folder.append(PartFinished(part="text", verdict=part.verdict, exporter="export", seconds=1, asked=1))
        (tmp_path / "runs" / run / "report.json").write_bytes(encode({"parts": [part], "environment": {}}))
    assert find_prescription(TINY, "text").names == (("mask-without-vmap",) if prescribes else ())


@pytest.mark.parametrize(
    ("scanned", "source", "asked", "is_known"),
    [
        ("my.py:make", "here/my.py", "my.py:make", True),
        ("my.py:make", "here/my.py", "../here/my.py:make", True),
        ("my.py:make", "here/my.py", "my.py:other", False),
        ("my.py:make", "there/my.py", "my.py:make", False),
        ("test_my.py:make", "here/my.py", "my.py:make", False),
        (".", "here/config.json", ".", True),
        (".", "here/config.json", "../here/", True),
        ("../here", "here/config.json", ".", True),
        (".", "there/config.json", ".", False),
    ],
)
def test_a_scan_is_of_the_file_or_folder_and_not_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scanned: str, source: str, asked: str, is_known: bool
) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        for name in ("my.py", "config.json"):
            (tmp_path / place / name).write_text("")
    monkeypatch.chdir(tmp_path / "here")
    opened = Opened(environment={}, parameters=0, weights="", device="cpu", dtype="", isolation="fork", seconds=0,
                    parts=("default",), sources={str(tmp_path / source): ""})  # fmt: skip
    with RunFolder.create(tmp_path / "home" / "runs" / "run") as folder:
        folder.append(RunStarted(run="run", target=TargetRef(ref=scanned), options=ScanOptions(), version="0"))
        folder.append(TargetOpened(opened=opened))
        folder.append(PartFinished(part="default", verdict="passes", exporter="export", seconds=1, asked=1))
    part = PartRecord(name="default", verdict="passes", exporter="export", seconds=1)
    (tmp_path / "home" / "runs" / "run" / "report.json").write_bytes(encode({"parts": [part], "environment": {}}))
    if is_known:
        assert find_prescription(asked, "default").names == ()
        return
    with pytest.raises(UsageError, match="has not been scanned"):
        find_prescription(asked, "default")


def test_files_appear_under_their_names_only_when_they_are_whole(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(StoreError, match="cannot be written"), draft_folder(tmp_path, "a") as draft:
        cut_off(draft)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    with draft_folder(tmp_path, "a") as draft:
        write_draft(draft / "a.bin", b"whole")
        assert install(draft, tmp_path, ["a.bin"]) == (tmp_path / "a.bin",)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]


def cut_off(draft: Path) -> None:
    """A first file is there, and the second finds no place."""
    write_draft(draft / "a.bin", b"half")
    write_draft(draft / "b" / "b.bin", b"")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place_of in (tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(StoreError) as caught, draft_folder(place_of, "a"):
            pass
        assert "\n" not in caught.value.line()
    with pytest.raises(StoreError, match="is a folder"):
        check_output_path(tmp_path)


def carried(*shims: Shim, image_input: bool = False, next_positions: bool = False) -> str:
    about = ModuleHeader(
        title=TINY, part="vision", made_by="exportdoctor export x", versions={"torch": "2"}, program="v.pt2",
        image_input=image_input, next_positions=next_positions,
    )  # fmt: skip
    return shims_module(order_shims(shims), about)


@pytest.mark.slow
@pytest.mark.parametrize("shim", [shim for shim in registry() if shim.provider == "own"], ids=lambda shim: shim.id)
def test_every_shim_of_ours_can_be_carried_into_a_module_that_does_not_import_us(shim: Shim) -> None:
    text = carried(shim)
    tree = ast.parse(text)
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not {name for name in modules if name.startswith("exportdoctor")}
    docstring = ast.get_docstring(tree) or ""
    assert shim.id in docstring
    assert shim.soundness in docstring
    assert undefined(tree) == set()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("provider", ["transformers.exporters", pytest.param("onnx-diagnostic", id="onnx_diagnostic")])
def test_shims_of_other_libraries_are_carried_and_the_module_says_which_it_needs(provider: str) -> None:
    shims = [shim for shim in registry() if shim.provider == provider and not shim.problem]
    for shim in shims:
        text = carried(shim)
        tree = ast.parse(text)
        assert "from exportdoctor" not in text
        assert "import exportdoctor" not in text
        assert undefined(tree) == set()
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert len(names) == len(set(names))
        first = (ast.get_docstring(tree) or "").split("Written by")[0]
        assert all(name in first for name in shim.needs), shim.id
        if shim.soundness == "opaque":  # its operator must be known before a program that calls it can be loaded
            assert f"for name in ('{shim.id}',):" in text
    if not shims:
        pytest.skip(f"{provider} is not installed: `make long` runs this with onnx-diagnostic")


def test_the_module_that_takes_a_plain_image_is_carried_along() -> None:
    text = carried(find("block-diagonal-attention"), image_input=True)
    tree = ast.parse(text)
    assert "PlainImage" in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert "from exportdoctor" not in text
    assert undefined(tree) == set()


def test_the_function_that_says_where_a_generated_token_stands_is_carried_along() -> None:
    tree = ast.parse(carried(find("precompute-position-ids"), next_positions=True))
    assert "next_positions" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert undefined(tree) == set()


def undefined(tree: ast.Module) -> set[str]:
    """Names that a carried function reads and that nothing defines; local ones are defined by being assigned."""
    import builtins

    known = set(dir(builtins)) | {"__file__", "__name__"}
    read: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Load()):
                read.add(node.id)
            case ast.Name():
                known.add(node.id)
            case ast.FunctionDef() | ast.ClassDef():
                known.add(node.name)
            case ast.arg():
                known.add(node.arg)
            case ast.Import() | ast.ImportFrom():
                known.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            case ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name):
                known.add(name)
            case ast.MatchStar(name=str() as name):
                known.add(name)
    return read - known


def test_shims_whose_helpers_have_the_same_names_are_kept_apart() -> None:
    text = carried(*(find(name) for name in ("precompute-grid", "precompute-position-ids", "block-diagonal-attention")))
    tree = ast.parse(text)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len(names) == len(set(names))


def test_the_file_can_be_imported_by_its_name() -> None:
    for ref in ("Qwen2.5-VL-3B", "./my-model/", "some/where.py:make"):
        assert file_name(ref, "vision").removesuffix(".py").isidentifier()


@pytest.mark.night
def test_a_target_that_does_not_end_is_stopped_at_the_limit_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def build():\n    import time\n    time.sleep(1000)\n")
    target = f"{tmp_path / 'model.py'}:build"
    code, lines = told(target, "--to", "pt2", "--weights", "random", "--shims", "none", "--build-timeout", "8", "-q")
    assert code == 3
    assert "--build-timeout allows more" in " ".join(lines)


def test_the_proof_of_another_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """Story: a .pt2 and then an .onnx of one part, and the first had no proof any more."""

    def stem(output: str) -> str:
        file = ExportedFile(name=output, bytes=1)
        return stem_of_proof("tower", tmp_path / output, [file])

    assert stem("tower.pt2") == "tower"
    proof = ProofFile(
        target="t", part="p", to="pt2", verdict="proved", command="", image_input=False, shims=(), numbers=(),
        ran_in="", files=(ExportedFile(name="tower.pt2", bytes=1),),
    )  # fmt: skip
    (tmp_path / "tower.proof.json").write_bytes(encode(proof))
    assert stem("tower.onnx") == "tower"  # the file of that proof is gone
    (tmp_path / "tower.pt2").touch()
    assert stem("tower.onnx") == "tower.onnx"
    assert stem("tower.pt2") == "tower"
    (tmp_path / "tower.proof.json").write_bytes(b"damaged")
    assert stem("tower.onnx") == "tower"


def test_sizes_that_depend_on_one_another_are_told_as_such() -> None:
    """Story: "n: 2 to 6" beside a line that says that it is right at 12, and an ONNX file that checks neither."""
    axes = tuple(SizeAxis(name=name, example=6, until=24) for name in ("x[0]", "n"))
    request = ExportRequest(target=TargetRef(ref="x.py:build"), part="default", to="pt2", folder="", stem="x")

    def told(text: str, opset: int = 0) -> str:
        domain = SizeDomain(axes=axes, conditions=(SizeCondition(text=text, kind="guard"),))
        return "\n".join(export_lines(request, ExportResult(verdict="proved", domains=(domain,), opset=opset), ()))

    assert "others as in the example" in told("(n ≥ 0) & (n ≤ x[0])")
    assert "others as in the example" not in told("n ≤ 6")
    assert "the ONNX file has no such checks" in told("n ≤ 6", opset=20)
    assert "ONNX" not in told("n ≤ 6")
