"""The names of the code: one word for one thing, verbs for functions that do something, nouns for values.

The words themselves are explained in docs/architecture.md.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOTS = [Path(__file__).parents[1] / folder for folder in ("src/exportdoctor", "tui/exportdoctor_tui")]
FILES = sorted(file for root in ROOTS for file in root.rglob("*.py"))


@functools.cache
def _tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


# Past participles that do not end in -ed, as far as somebody could use one as a function's name.
IRREGULAR = frozenset(
    [
        "begun",
        "born",
        "bound",
        "bought",
        "brought",
        "broken",
        "built",
        "caught",
        "chosen",
        "cut",
        "done",
        "drawn",
        "driven",
        "fallen",
        "felt",
        "forgotten",
        "found",
        "given",
        "gone",
        "grown",
        "handed",
        "heard",
        "held",
        "hidden",
        "kept",
        "known",
        "laid",
        "led",
        "left",
        "lent",
        "lost",
        "made",
        "meant",
        "met",
        "overridden",
        "put",
        "said",
        "seen",
        "sent",
        "shown",
        "shrunk",
        "slept",
        "sliced",
        "sold",
        "sought",
        "spelt",
        "spent",
        "spoken",
        "stolen",
        "struck",
        "sworn",
        "taken",
        "thrown",
        "told",
        "torn",
        "understood",
        "worn",
        "written",
    ]
)
# Words that end like a participle and are none, or are also a verb or an adjective of their own.
NO_PARTICIPLES = frozenset(
    [
        "embed",
        "exceed",
        "feed",
        "heading",
        "indeed",
        "missing",
        "need",
        "padding",
        "proceed",
        "red",
        "seed",
        "speed",
        "string",
    ]
)

# Two files with one stem, where each is what its folder's name says it is.
SHARED_STEMS = {
    "__init__": "Python's own",
    "__main__": "Python's own",
    "export": "a verb in cli, its wire protocol in core, its sentences in report",
    "domain": "a verb in cli, its wire protocol in core",
    "sensitivity": "a verb in cli, its wire protocol in core",
    "report": "a verb in cli, the record in core",
    "repro": "a verb in cli, its wire protocol in core, its sentences in report",
    "runs": "a verb in cli, the runs on disk in store",
    "atlas": "the record in core, its sentences in report",
    "model_types": "its wire protocol in core, the process that answers in worker",
    "sweep": "a verb in cli, a walk over all reductions in reduce",
    "scan": "a verb in cli, its wire protocol in core, its run in engine, its sentences in report",
}

# Constants of one name, where each is what its file's or folder's name says it is.
SHARED_CONSTANTS = {
    "HOOKS": "of each file of torch_internals its own",
    "SHIM": "of each file of shims its own",
    "FIXED": "beside two such shims, the variant that fixes what is no tensor",
    "SHIMS": "those of one file in shims, the option --shims in cli",
    "PROVIDER": "of each provider of shims its own",
    "GROUP": "the group of entry points: of the terminal interface in cli, of users' shims in shims",
    "SCHEMA": "of each file that is written its own: events, report, proof",
    "ALL": "what rewritten code calls: in branches, and in the steps of a while loop",
    "ANY": "what rewritten code calls: in branches, and in the steps of a while loop",
    "NOT": "what rewritten code calls: in branches, and in the steps of a while loop",
    "VALUE": "what rewritten code calls: in branches, in loops, and in the steps of a while loop",
    "RUN": "what rewritten code calls in shims, the keys of a screen in the terminal interface",
    "NUMBERS": "what rewritten code calls in shims, a hook in torch_internals",
    "SCAN": "what rewritten code calls in shims, a hook in torch_internals",
    "CONDITION": "an operation in core, the precondition of a shim in shims, a hook in torch_internals",
    "JOINS": "torch's functions that join a list, and the object that stands for a joined list in a rewritten loop",
    "FUNCTIONS": "kinds of syntax trees in shims/edits, a provider's patches in shims/providers",
    "GRID": "the name of an input in shims/own, an example of its values in targets",
    "MEDIA": "the prefixes of two inputs in shims/own, the names of all inputs that are no text in targets",
    "KINDS": "kinds of failures in core, kinds of input files, in words, in targets",
    "LARGEST": "the largest number that JSON has in worker, the size up to which state is followed in shims",
    "PLAIN": "the kinds of values that a file of worker takes for plain, of each its own",
    "SEED": "of the weights and of the inputs, in targets",
    "STAGES": "the columns of an atlas, the stages of an attempt in the terminal interface",
}


def _properties(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _properties(node):
            yield node


def _is_bare_participle(name: str) -> bool:
    word = name.strip("_")
    if "_" in word or word in NO_PARTICIPLES or name.startswith("__"):  # Python chose the names with two
        return False
    return word.endswith(("ed", "ing")) or word in IRREGULAR


@pytest.mark.parametrize("file", FILES, ids=lambda file: "/".join(file.parts[-2:]))
def test_no_function_is_named_by_a_bare_participle(file: Path) -> None:
    names = [node.name for node in _functions(_tree_of(file))]
    assert [name for name in names if _is_bare_participle(name)] == []


def test_no_two_public_classes_have_one_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in FILES:
        for node in _tree_of(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append("/".join(file.parts[-2:]))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_two_files_have_one_stem_but_those_with_a_reason() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in FILES:
        places[file.stem].append("/".join(file.parts[-2:]))
    shared = {stem: found for stem, found in places.items() if len(found) > 1}
    assert {stem: found for stem, found in shared.items() if stem not in SHARED_STEMS} == {}


def test_every_reason_for_a_shared_stem_is_still_needed() -> None:
    stems = [file.stem for file in FILES]
    assert [stem for stem in SHARED_STEMS if stems.count(stem) < 2] == []


def _public_constants(file: Path) -> Iterator[str]:
    for node in _tree_of(file).body:
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=value):
                targets = [target]
            case _:
                continue
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar":
            continue
        names = (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        yield from (name for name in names if name.isupper() and not name.startswith("_"))


def _shared_constants() -> dict[str, list[str]]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in FILES:
        for name in _public_constants(file):
            places[name].append("/".join(file.parts[-2:]))
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_public_constants_have_one_name_but_those_with_a_reason() -> None:
    assert {name: found for name, found in _shared_constants().items() if name not in SHARED_CONSTANTS} == {}


def test_every_reason_for_a_shared_constant_is_still_needed() -> None:
    assert SHARED_CONSTANTS.keys() - _shared_constants().keys() == set()
