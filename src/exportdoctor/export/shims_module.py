"""Writes `shims_for_<target>_<part>.py`: a prescription's shims as one module that needs torch and not exportdoctor.

Every definition in it is the source of the shim that was verified; only names that would clash are changed.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exportdoctor.core.errors import UsageError
from exportdoctor.export.source_bundler import SourceBundler, source_of
from exportdoctor.shims import SOUNDNESS_MEANS, Shim
from exportdoctor.shims.export_call import Facts
from exportdoctor.store.places import slug

CACHES = "register-cache-pytree"
CACHE_SHIMS = (CACHES, "register-cache-pytree-fixed")
REGISTERS_OBJECTS = "register-dataclass-pytree"
"""How the ids of the shims begin that register classes of the user's own for the time of an export."""
ADDS_KEYS = "register-pytree-keys"
"""The id of the shim that completes registrations of classes for the time of an export."""
_ADD_KEYS = ("exportdoctor.torch_internals.pytree_registry", "add_keys")
_WITHOUT_KEYS = ("exportdoctor.torch_internals.pytree_registry", "classes_without_keys")
_REGISTER = ("exportdoctor.shims.own.dataclass_pytrees", "register_attributes")
_IS_REGISTERED = ("exportdoctor.torch_internals.pytree_registry", "is_registered")
_CALL = "exportdoctor.shims.export_call"
_EXPORTING = "exportdoctor.shims.torch_export"
_PLAIN_IMAGE = "exportdoctor.worker.export.image_input"
_RECORD = "exportdoctor.shims.record"
_POSITIONS = ("exportdoctor.shims.own.position_ids", "next_positions")

_PUBLIC = frozenset({"FACTS", "SHIMS", "shims", "export", "convert", "load", "caches"})
"""What the module offers, whatever the shims' own helpers are called."""

_TAIL = '''
{facts}SHIMS = {{
{table}
}}
"""Each is a context manager that takes a call and yields the call to export; applied in this order."""


_ONE_AT_A_TIME = RLock()


@contextmanager
def shims(module, args=(), kwargs=None, *, dynamic_shapes=None, more_inputs=()):
    """Within it the shims hold; yields the call to export, an `ExportCall`. Everything is restored afterwards.

    The arguments are those of `torch.export.export`; `more_inputs` are (args, kwargs) of other sizes, which show what
    is dynamic in inputs that a shim adds.
    """
    call = ExportCall(
        module=module, args=tuple(args), kwargs=kwargs or {{}}, dynamic_shapes=dynamic_shapes, more_inputs=more_inputs
    )
    with ExitStack() as stack:
        for enter in SHIMS.values():
            call = stack.enter_context(enter(call))
        yield call


def export(module, args=(), kwargs=None, *, dynamic_shapes=None, more_inputs=()):
    """The `ExportedProgram` of the module under the shims."""
    with shims(module, args, kwargs, dynamic_shapes=dynamic_shapes, more_inputs=more_inputs) as call:
        return export_program(call)


def convert(module, args=(), kwargs=None, *, dynamic_shapes=None):
    """Inputs of the untouched module as inputs of the exported program: (args, kwargs).

    The shims hold for the whole process meanwhile: other threads must not run the module.
    """
    call = ExportCall(module=module, args=tuple(args), kwargs=kwargs or {{}}, dynamic_shapes=dynamic_shapes{known})
    with _ONE_AT_A_TIME, ExitStack() as stack:
        for name, enter in SHIMS.items():
            try:
                call = stack.enter_context(enter(call))
            except NotApplicable:  # it is about dynamic sizes, of which one call has none
                if name in {changing!r}:  # the program takes what it makes
                    raise
{check}        return call.args, call.kwargs
'''

_ABOUT_FACTS = '''"""What of the example is part of each program: `convert` refuses inputs that give anything else."""

'''

_LOAD_TAIL = '''

def load(path):
    """A saved program; its outputs are of classes that torch knows once their module is imported."""
    for name in {imports!r}:
        importlib.import_module(name)
    return torch.export.load(path)
'''

_LOAD_OPAQUE_TAIL = '''

def load(path):
    """A saved program; its outputs are of classes that torch knows once their module is imported, and its custom
    operators are known once the shims that bring them were applied."""
    for name in {imports!r}:
        importlib.import_module(name)
    with ExitStack() as stack:
        for name in {opaque!r}:
            stack.enter_context(SHIMS[name](None))
        return torch.export.load(path)
'''

_REGISTERING_LOAD_TAIL = '''

def load(path):
    """A saved program. The classes of its inputs and outputs are registered as for the export, and stay so."""
    for place in {{classes!r}}:
        module, _, name = place.partition(":")
        kind = attrgetter(name)(importlib.import_module(module))
{steps}
    return torch.export.load(path)
'''
_REGISTER_STEP = "        if not is_registered(kind):\n            register_attributes(kind)"
_KEYS_STEP = "        if kind in classes_without_keys():\n            add_keys(kind)"

_CACHE_TAIL = '''

@contextmanager
def caches():
    """Within it a program that takes or returns a cache can be loaded and run."""
    with SHIMS["{name}"](None):
        yield
'''


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleHeader:
    """The header of the module. `made_by` is the command, `versions` those of the proof, `program` the file that
    was proved, `imports` and `classes` what must be imported and registered before that can be loaded, `sets` and
    `facts` as in ExportResult. With `image_input` it brings the module that makes patches of a plain image, with
    `next_positions` the function that says where a generated token stands.
    """

    title: str
    part: str
    made_by: str
    versions: Mapping[str, str]
    program: str = ""
    proved: str = ""
    imports: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    facts: tuple[Facts, ...] = ()
    image_input: bool = False
    next_positions: bool = False


def file_name(ref: str, part: str) -> str:
    """`shims_for_<target>_<part>.py`, a name that can be imported; other parts need other shims."""
    return f"shims_for_{re.sub(r'[^0-9a-z]+', '_', f'{slug(ref)}_{part.lower()}').strip('_')}.py"


def shims_module(shims: Sequence[Shim], about: ModuleHeader) -> str:
    """The module's text. Raises UsageError where a shim's source cannot be carried."""
    bundler = SourceBundler(reserved=_PUBLIC)
    bundler.add(_CALL, "ExportCall")
    bundler.add(_EXPORTING, "export_program")
    bundler.add(_RECORD, "NotApplicable")
    if about.image_input:
        bundler.files[_PLAIN_IMAGE] = str(Path(__file__).parents[1] / "worker" / "export" / "image_input.py")
        bundler.add(_PLAIN_IMAGE, "PlainImage")
    if about.next_positions:
        bundler.add(*_POSITIONS)
    entries = []
    for shim in shims:
        bundler.parts.append(f"# {shim.id}: {shim.title}")
        entries.append((shim.id, _expression(bundler, shim)))
    for name in ("contextmanager", "ExitStack"):
        bundler.imports[name] = ("contextlib", name)
    bundler.imports["RLock"] = ("threading", "RLock")
    changing = tuple(shim.id for shim in shims if shim.soundness == "signature")
    known = (
        f", converts_for=frozenset({list(about.sets)!r})" if any(one.startswith("hoist") for one in changing) else ""
    )
    check = facts = ""
    if any(about.facts):
        facts = f"FACTS = {tuple(map(dict, about.facts))!r}\n" + _ABOUT_FACTS
        known += ", wanted=FACTS"
        check = "        require_facts(call)\n"
        bundler.add(_CALL, "require_facts")
    table = "\n".join(f'    "{name}": {text},' for name, text in entries)
    tail = _TAIL.format(facts=facts, table=table, changing=changing, known=known, check=check)
    if about.program.endswith(".pt2"):
        opaque = tuple(shim.id for shim in shims if shim.soundness == "opaque")
        load = _LOAD_OPAQUE_TAIL if opaque else _LOAD_TAIL
        steps = []
        if any(shim.id.startswith(REGISTERS_OBJECTS) for shim in shims):
            steps.append(_REGISTER_STEP)
            bundler.add(*_REGISTER)
            bundler.add(*_IS_REGISTERED)
        if any(shim.id == ADDS_KEYS for shim in shims):
            steps.append(_KEYS_STEP)
            bundler.add(*_ADD_KEYS)
            bundler.add(*_WITHOUT_KEYS)
        if steps:
            load = _REGISTERING_LOAD_TAIL.format(steps="\n".join(steps))
            bundler.imports["attrgetter"] = ("operator", "attrgetter")
        tail += load.format(imports=about.imports, classes=about.classes, opaque=opaque)
        bundler.imports.update({"importlib": ("importlib", ""), "torch": ("torch", "")})
    if found := [name for name, _ in entries if name in CACHE_SHIMS]:
        tail += _CACHE_TAIL.format(name=found[0])
    parts = [_header(shims, about), _imports(bundler), "\n\n\n".join(bundler.parts), "", tail.strip("\n")]
    text = "\n\n".join(parts) + "\n"
    compile(text, "<shims>", "exec")
    return text


def _expression(bundler: SourceBundler, shim: Shim) -> str:
    try:
        return _of_function(bundler, shim.enter, _identifier(shim.id))
    except (OSError, TypeError, SyntaxError, LookupError) as error:
        raise UsageError(
            f"The source of the shim {shim.id} cannot be copied into a separate file: {error}",
            hint="Apply the shims with exportdoctor.shims.apply_shims",
        ) from error


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")


def _of_function(bundler: SourceBundler, function: Callable[..., Any], name: str) -> str:
    """An expression for a function: its name, or a call of a factory that gives it what it closed over."""
    plain = inspect.unwrap(function)
    module = plain.__module__
    if module not in sys.modules or not module.startswith("exportdoctor."):
        bundler.files[module] = inspect.getsourcefile(plain) or ""
    if not plain.__code__.co_freevars:
        return bundler.add(module, plain.__qualname__, called=f"_{name}")
    cells = zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True)
    values = {variable: cell.cell_contents for variable, cell in cells}
    given = ", ".join(f"{key}={_literal(bundler, value, f'{name}_{key}')}" for key, value in values.items())
    factory = f"_made_{name}"
    body = textwrap.indent(textwrap.dedent(_nested_source(bundler, module, plain)), "    ")
    bundler.parts.append(f"def {factory}({', '.join(values)}):\n{body}\n\n    return {plain.__name__}")
    return f"{factory}({given})"


def _nested_source(bundler: SourceBundler, module: str, plain: Any) -> str:
    source = source_of(module, bundler.files.get(module, ""))
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.FunctionDef) and source.lines(node)[0] == plain.__code__.co_firstlineno:
            return bundler.adapt(module, node, bound=frozenset(plain.__code__.co_freevars))
    raise LookupError(f"{plain.__qualname__} is not where it was")


def _literal(bundler: SourceBundler, value: Any, name: str) -> str:
    """A value as an expression. Raises TypeError for one that has none."""
    if inspect.isfunction(inspect.unwrap(value)) if callable(value) else False:
        return _of_function(bundler, value, name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = bundler.add(type(value).__module__, type(value).__qualname__)
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        given = [f"{key}={_literal(bundler, item, f'{name}_{key}')}" for key, item in fields.items()]
        return f"{kind}({', '.join(given)})"
    try:
        if ast.literal_eval(repr(value)) == value:
            return repr(value)
    except (ValueError, SyntaxError):
        pass
    raise TypeError(f"it rests on {type(value).__name__} {value!r:.60}")


def _imports(bundler: SourceBundler) -> str:
    """`from __future__` first, then plain imports, then names by module; Python's own before others."""
    plain = sorted({module for module, name in bundler.imports.values() if not name})
    named: dict[str, list[str]] = {}
    for alias, (module, name) in sorted(bundler.imports.items()):
        if name and module != "__future__":
            named.setdefault(module, []).append(name if alias == name else f"{name} as {alias}")
    lines = [f"import {module}" for module in plain]
    lines += [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(named.items())]
    own = [line for line in lines if line.split()[1].partition(".")[0] in sys.stdlib_module_names]
    other = [line for line in lines if line not in own]
    blocks = ["from __future__ import annotations", "\n".join(own), "\n".join(other)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _header(shims: Sequence[Shim], about: ModuleHeader) -> str:
    lines = [
        f'"""Shims for {about.title}, part {about.part}: what makes it export.',
        "",
        *_wrap(f"Needs {_needed_packages(shims)}, and not exportdoctor."),
        "",
    ]
    lines += _wrap(f"Written by `{about.made_by}`." + (f" {about.proved}" if about.proved else ""))
    lines += ["", *_wrap("Versions of the proof: " + ", ".join(f"{k} {v}" for k, v in about.versions.items()) + ".")]
    for shim in shims:
        lines += ["", *_wrap(f"{shim.id} ({shim.soundness}: {SOUNDNESS_MEANS[shim.soundness]})")]
        lines += _wrap(shim.does or shim.title, indent="    ")
        if shim.precondition:
            lines += _wrap(f"Precondition: {shim.precondition}.", indent="    ")
        if shim.needs:
            needs = ", ".join(f"{name} {wanted}".strip() for name, wanted in shim.needs.items())
            lines += _wrap(f"Made for {needs}. Upstream: {shim.link}", indent="    ")
    lines += ["", "Use:", *(f"    {line}" for line in _use(shims, about)), '"""']
    return _escape(lines)


def _needed_packages(shims: Sequence[Shim]) -> str:
    """The packages that the shims import, torch first."""
    names = dict.fromkeys(["torch", *(name for shim in shims for name in shim.needs)])
    return ", ".join(names)


def _use(shims: Sequence[Shim], about: ModuleHeader) -> list[str]:
    name = about.program or "program.pt2"
    module = file_name(about.title, about.part).removesuffix(".py")
    lines = [
        f"import {module} as cure",
        *(["model = cure.PlainImage(encoder).eval()"] if about.image_input else []),
        "program = cure.export(model, args, kwargs, dynamic_shapes=shapes)   # instead of torch.export.export",
        f"program = cure.load({name!r})".ljust(68) + "# or the one that is already made"
        if name.endswith(".pt2")
        else f"# or the file that is already made: {name}",
        "args, kwargs = cure.convert(model, args, kwargs)                    # the program's inputs",
        "program.module()(*args, **kwargs)",
    ]
    if any(shim.id in CACHE_SHIMS for shim in shims):
        lines.append("# a program that takes or returns a cache is loaded and run within `with cure.caches():`")
    return lines


_WIDTH = 110


def _wrap(text: str, *, indent: str = "") -> list[str]:
    """The text in lines of at most 110 characters, without breaking links and names."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _escape(lines: Sequence[str]) -> str:
    """The lines of a docstring with backslashes escaped."""
    return "\n".join(line.rstrip().replace("\\", "\\\\") for line in lines)
