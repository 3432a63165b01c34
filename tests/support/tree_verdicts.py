"""Compares a scan of a forest (module_trees.py) with plain exports of each of its modules."""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils import _pytree as pytree

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run.report import FAILING, Report
from exportdoctor.shims import apply_shims, call_for_part, export_program, find, order_shims
from exportdoctor.targets import build, resolve
from module_trees import Node, Written, draw_forest, edited, smaller, write_forest
from scanning import scan_file

Forest = tuple[Node, ...]


@dataclass(frozen=True)
class Drawn:
    """A forest, its sizes, and what is changed before it is scanned a second time (nothing where it equals `trees`)."""

    trees: Forest
    after: Forest = ()
    dynamic: bool = False


def draw(seed: int, *, trees: int, depth: int = 2) -> Drawn:
    """A forest of trees that run in eager. Of eight seeds one is dynamic, one is edited and scanned again."""
    chance = random.Random(seed)
    dynamic = seed % 8 == 1
    kept = _running(draw_forest(seed, trees + 6, depth=depth), dynamic=dynamic)[:trees]
    after = tuple(edited(tree, chance) if chance.random() < 0.5 else tree for tree in kept) if seed % 8 == 3 else ()
    return Drawn(kept, after if len(_running(after, dynamic=dynamic)) == len(kept) else (), dynamic)


def _running(trees: Forest, *, dynamic: bool) -> Forest:
    """Those whose forward runs by itself at every size."""
    runs = eval(in_child(lambda: repr([_runs(tree, dynamic) for tree in trees])))
    return tuple(tree for tree, one in zip(trees, runs, strict=True) if one)


def _runs(tree: Node, dynamic: bool) -> bool:
    with TemporaryDirectory() as folder, installed(write_forest((tree,), dynamic=dynamic), Path(folder)) as file:
        try:
            module, args, *others = built_forest(file)
            for one in (args, *others):
                with torch.no_grad():
                    module(*one)
        except Exception:
            return False
    return True


def disagreements(drawn: Drawn, folder: Path) -> list[str]:
    """What a scan says of a module, where plain exports say something else: one line each."""
    found: list[str] = []
    states = [drawn.trees, drawn.after] if drawn.after else [drawn.trees]
    for moment, trees in enumerate(states):
        with installed(write_forest(trees, dynamic=drawn.dynamic), folder) as file:
            plain = plain_exports(file)
            report = scan_file(file, exhaustive=True, use_cache=len(states) > 1)
            found += [f"{'after the edit: ' * moment}{line}" for line in _differences(report, plain, file)]
    return found


def shrunk(drawn: Drawn, folder: Path, *, tries: int = 60) -> Drawn:
    """A smaller forest of which a scan still says something false, within so many scans."""
    chances = iter(range(tries))

    def is_false(one: Drawn) -> bool:
        number = next(chances, None)
        if number is None or len(_running(one.trees, dynamic=one.dynamic)) < len(one.trees):
            return False
        return bool(disagreements(one, folder / f"smaller{number}"))

    if drawn.after:
        pairs = zip(drawn.trees, drawn.after, strict=True)
        return next((d for d in (Drawn((a,), (b,), drawn.dynamic) for a, b in pairs) if is_false(d)), drawn)
    alone = (Drawn((tree,), (), drawn.dynamic) for tree in drawn.trees)
    least = next((d for d in alone if is_false(d)), drawn)
    while len(least.trees) == 1:
        steps = (Drawn((tree,), (), drawn.dynamic) for tree in smaller(least.trees[0]))
        less = next((d for d in steps if is_false(d)), None)
        if less is None:
            break
        least = less
    return least


def _differences(report: Report, plain: dict[str, tuple[str, ...]], file: Path) -> Iterator[str]:
    """`plain` has for each module the failures of its calls, each with its line (`Type:line`)."""
    if not report.parts:
        yield "nothing was scanned"
        return
    findings = {finding.id: finding for finding in report.findings}
    source = file.read_text().splitlines()
    told = {module.fqn: module for module in report.parts[0].modules if module.status != "not_called"}
    told = {fqn: module for fqn, module in told.items() if fqn in plain or module.same_as is None}
    if told.keys() != plain.keys():
        yield f"called: {sorted(told.keys() ^ plain.keys())}"
    for fqn in told.keys() & plain.keys():
        module, failures = told[fqn], plain[fqn]
        finding = findings.get(module.finding or "")
        is_wrong = finding is not None and finding.kind is FailureKind.NUMBERS  # it exports, and is not eager's
        if (module.status in FAILING and not is_wrong) != any(failures):
            yield f"{fqn}: {module.status} ({module.evidence}, {module.same_as}), plain: {failures}"
        elif module.status == "fails_own" and finding is not None and not is_wrong:
            frame = finding.guard or finding.value_origin
            line = finding.line if frame is None else frame.line
            lines = {failure.rpartition(":")[2] for failure in failures}
            mark = source[line - 1].partition("# fault")[2] if line else ""
            planted = mark.partition(": ")[2]
            own = mark and (
                planted in ("", "helper", "generator")
                or module.class_name in (planted, f"Parametrized{planted}", "A", "B")
            )
            if finding.behind and not own and str(line or 0) not in lines:
                lines = _lines_unmasked(file, module.class_name, fqn)
            # torch names no line of a fixed size: it may be fixed where a fault is planted in a child
            is_planted = mark and finding.kind is FailureKind.DYNAMIC_DIM_SPECIALISED
            unsaid = lines == {"0"} and line and ("shape" in source[line - 1] or is_planted)
            if not own and not unsaid and str(line or 0) not in lines:
                yield f"{fqn}: line {line} ({finding.kind}, {finding.source}), plain: {failures}"


def _lines_unmasked(file: Path, class_name: str, fqn: str) -> set[str]:
    """The lines at which a plain export of a module ends once no other class has a planted fault."""

    def mended(line: str) -> str:
        code, _, planted = line.partition("  # fault: ")
        if not re.fullmatch(r"K\d+", planted.strip()) or planted.strip() == class_name or code.endswith(":"):
            return line
        said = code.lstrip()
        return f"{code[: len(code) - len(said)]}{'return x' if said.startswith('return') else 'pass'}"

    with TemporaryDirectory() as folder:
        copied = Path(shutil.copytree(file.parent, Path(folder) / "mended"))
        text = "\n".join(map(mended, file.read_text().splitlines()))
        (copied / file.name).write_text(text)
        return {failure.rpartition(":")[2] for failure in plain_exports(copied / file.name).get(fqn, ())}


def broken_cure(tree: Node, folder: Path, *, dynamic: bool, seed: int) -> tuple[str, str]:
    """What a scan prescribes, and what inputs that no set of the scan's own has show against it: "" where nothing."""
    with installed(write_forest((tree,), dynamic=dynamic), folder) as file:
        report = scan_file(file, cure=True)
        found = report.parts[0].prescription
        if report.parts[0].verdict != "cured" or found is None:
            return "", ""
        shims = f"{' + '.join(found.shims)} ({found.soundness})"
        return shims, in_child(lambda: _attack(file, found.shims, found.soundness, dynamic=dynamic, seed=seed))


def _attack(file: Path, names: tuple[str, ...], soundness: str, *, dynamic: bool, seed: int) -> str:
    plan = resolve(TargetRef(ref=f"{file}:build"))
    part, eager = build(plan).part("default"), build(plan).part("default").module
    with apply_shims(order_shims([find(name) for name in names]), call_for_part(part)) as given:
        program = export_program(given).module()
        for title, x in _attacks(seed, rows=(2, 3, 4, 7) if dynamic else (3,)):
            with torch.no_grad():
                try:
                    wanted = eager(x.clone())
                except Exception:
                    continue
                try:
                    args, kwargs = given.convert(((x.clone(),), {}))
                    answer = program(*args, **kwargs)
                except Exception as error:
                    if soundness in ("exact", "signature"):
                        return f"{title}: the program refuses {x.tolist()}: {type(error).__name__}: {error}"[:400]
                    continue
            if not torch.allclose(answer, wanted, rtol=1e-4, atol=1e-5, equal_nan=True):
                return f"{title}: {x.tolist()} gives {answer.tolist()}, eager {wanted.tolist()}"[:600]
    return ""


def _attacks(seed: int, *, rows: tuple[int, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """Inputs of each size: usual ones, of one sign, extreme, equal, and in another order."""
    drawn = torch.Generator().manual_seed(seed)
    for count in rows:
        x = torch.randn(count, 4, generator=drawn)
        yield from (
            ("usual", x), ("negative", -x.abs()), ("positive", x.abs() + 0.1), ("large", x * 1e4), ("small", x * 1e-4),
            ("zero", x * 0), ("equal", torch.full_like(x, 0.7)), ("reversed", x.flip(0)), ("one row", x.new_tensor(
            [[5.0, 0, 0, 0]] + [[-1.0, 0, 0, 0]] * (count - 1))), ("nan", x / (x * 0)),
        )  # fmt: skip


@contextmanager
def installed(written: Written, folder: Path) -> Iterator[Path]:
    """The files in the folder, the variables set; yields the path of the forest."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written.files.items():
        (folder / name).write_text(text)
    before = dict(os.environ)
    os.environ.update(written.variables)
    try:
        yield folder / "forest.py"
    finally:
        os.environ.clear()
        os.environ.update(before)


def built_forest(file: Path) -> tuple[Any, ...]:
    """The module, the example's arguments, and other arguments, of a fresh run of the file."""
    import types

    name = f"forest_{random.getrandbits(60)}"
    module = types.ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    sys.modules.pop("tree_flags", None)
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    made = module.build()
    return (
        (made["module"], made["args"], *(args for args, _ in made["more_inputs"])) if isinstance(made, dict) else made
    )


Call = tuple[tuple[Any, ...], dict[str, Any]]


def plain_exports(file: Path) -> dict[str, tuple[str, ...]]:
    """Of each called module the failures of its calls, each exported in a process of its own: "" where it passes."""
    made = in_child(lambda: repr(_all_exports(file)))
    assert made.startswith("{"), made
    found: dict[str, tuple[str, ...]] = eval(made)
    return found


def _all_exports(file: Path) -> dict[str, tuple[str, ...]]:
    """The inputs are those of one forward; what is exported is a module that never ran."""
    sys.path.insert(0, str(file.parent))
    ran, args, *others = built_forest(file)
    calls = _calls(ran, args)
    more = _calls(ran, *others) if others else {}
    fresh = _built_again(ran)
    found = {}
    for name, many in calls.items():
        module = fresh.get_submodule(name)
        there = more.get(name, [])
        found[name] = tuple(
            in_child(partial(_export, module, call, other))
            for call, other in zip(many, there if len(there) == len(many) else [None] * len(many), strict=True)
        )
    return found


def _built_again(ran: torch.nn.Module) -> Any:
    made = sys.modules[type(ran).__module__].build()
    return made["module"] if isinstance(made, dict) else made[0]


def _calls(module: torch.nn.Module, args: tuple[Any, ...]) -> dict[str, list[Call]]:
    calls: dict[str, list[Call]] = {}
    handles = [
        child.register_forward_pre_hook(
            lambda m, a, k, name=name: calls.setdefault(name, []).append((a, k)), prepend=True, with_kwargs=True
        )
        for name, child in module.named_modules()
    ]
    with torch.no_grad():
        module(*args)
    for handle in handles:
        handle.remove()
    return calls


def _export(module: torch.nn.Module, call: Call, other: Call | None) -> str:
    """ "" or the exception with the innermost line in the module's file."""
    shapes = None if other is None else _dynamic(call, other)
    try:
        torch.export.export(module, *call, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("forest.py")]
        return f"{type(error).__name__}:{frames[-1].lineno if frames else 0}"
    return ""


def _dynamic(call: Call, other: Call) -> Any:
    def dims(mine: Any, theirs: Any) -> Any:
        if isinstance(mine, torch.Tensor):
            sizes = enumerate(zip(mine.shape, theirs.shape, strict=True))
            return {place: torch.export.Dim.DYNAMIC for place, (a, b) in sizes if a != b} or None
        if type(mine) is dict:
            return {name: dims(one, theirs[name]) for name, one in mine.items()}
        leaves = mine if isinstance(mine, list | tuple) else pytree.tree_leaves(mine)
        if leaves is not mine and len(leaves) == 1 and leaves[0] is mine:
            return None
        # torch takes a list for a class that is registered as a node
        made = map(dims, leaves, theirs if leaves is mine else pytree.tree_leaves(theirs))
        return tuple(made) if isinstance(mine, tuple) else list(made)

    args, kwargs = (dims(mine, theirs) for mine, theirs in zip(call, other, strict=True))
    return (*args, *kwargs.values()) if not kwargs else _named(call, args, kwargs)


def _named(call: Call, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(("x", "y", "mode"), args, strict=False)), **kwargs}


def in_child(answer: Callable[[], str]) -> str:
    """What it returns, in a fork; its exception as text."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        gc.freeze()  # a collection would copy every page of what the tests have imported
        os.close(reader)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            text = answer()
        except BaseException:
            text = traceback.format_exc()
        try:
            with os.fdopen(writer, "w") as out:
                out.write(text)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as given:
        text = given.read()
    os.waitpid(pid, 0)
    return text
