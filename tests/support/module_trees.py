"""Draws module trees that try to make a scan say something false, as source text.

A forest is a file with a factory of a module whose children are the drawn trees. In every node a *flag* decides whether
its forward reaches a *fault*: a line that export may refuse. The flag is held in a drawn *state*, often one that no
attribute shows, or follows from how the parent passes its inputs. Twins differ in a flag alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

HEADER = '''
import array, collections, contextlib, contextvars, ctypes, dataclasses, datetime, decimal, enum, fractions, functools
import io, itertools, json, logging, operator, os, pathlib, queue, random, re, struct, sys, threading, types, typing
import weakref

import numpy
import torch
from torch import nn
from transformers import DynamicCache
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

HERE = pathlib.Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))
REGISTRY, WEAK, BY_NAME, MEMBERS = {}, weakref.WeakKeyDictionary(), {}, set()
CURRENT = contextvars.ContextVar("current", default=False)


class Odd:
    def __init__(self, x):
        self.x = x


class Pair(typing.NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Options:
    level: int = 0


class SubString(str):
    pass


class Kept:
    """A cache that torch does not know."""

    def __init__(self):
        self.rows = []


@dataclasses.dataclass
class KeptRows:
    """A cache that torch knows."""

    rows: torch.Tensor


torch.export.register_dataclass(KeptRows, serialized_type_name=f"KeptRows{id(KeptRows)}")


class SubInt(int):
    pass


class SubList(list):
    pass


class SubDict(dict):
    def __missing__(self, key):
        return getattr(self, "flag", False)


class Slotted:
    __slots__ = ("flag",)

    def __init__(self, flag):
        self.flag = flag

    def method(self):
        return self.flag


class Plain:
    def __init__(self, flag):
        self.flag = flag

    def method(self):
        return self.flag

    def __call__(self):
        return self.flag

    def __repr__(self):
        return "Plain()"

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 7


class Computed:
    """A descriptor with values of its own."""

    def __init__(self):
        self.values = weakref.WeakKeyDictionary()

    def __get__(self, instance, owner):
        return self if instance is None else self.values[instance]

    def __set__(self, instance, value):
        self.values[instance] = value


class Hidden(nn.Module):
    def __init__(self, flag):
        super().__init__()
        self.flag = flag

    def forward(self):
        return self.flag


class Level(enum.Enum):
    A = 0
    B = 1


def closure_of(flag):
    return lambda: flag


def box_of(flag):
    box = [flag]
    return lambda: box[0]


def default_of(flag):
    return lambda flag=flag: flag


def kwdefault_of(flag):
    return lambda *, flag=flag: flag


def attributed(flag):
    def function():
        return function.flag

    function.flag = flag
    return function


def executed(flag):
    space = {"flag": flag}
    exec("def f():\\n    return flag", space)
    return space["f"]


def remembered(flag):
    function = functools.lru_cache(abs)
    for number in range(2 * flag):
        function(number)
    return function


def generated(flag):
    return type("Generated", (), {"flag": flag})


def with_attribute(value, flag):
    value.flag = flag
    return value


def local_of(flag):
    value = threading.local()
    value.flag = flag
    return value


def filled(flag):
    value = queue.Queue()
    value.put(flag)
    return value


def generator_of(flag):
    yield flag


def first(out):
    if isinstance(out, Odd):
        return out.x
    if isinstance(out, dict):
        return out["x"]
    return out[0] if isinstance(out, (tuple, list)) else out


def decide(x):
    return x + 1 if x.sum() > 0 else x - 1  # fault: helper


def refused(x):
    if x.isnan().any():
        raise ValueError('not a number')
    return x


def checked(x):
    try:
        if x.max() > 3:
            raise ValueError('too large')
    except ValueError:
        return x / x.max()
    return x


def rows_of(x):
    for row in x.unbind():
        yield row if row.sum() > -1e6 else -row  # fault: generator
'''

# where a flag is held: lines of the class, how an instance takes it, how forward asks
STATES: dict[str, tuple[str, str, str]] = {
    "attribute": ("", "self.flag = flag", "self.flag"),
    "int attribute": ("", "self.level = 2 + flag", "self.level == 3"),
    "float attribute": ("", "self.level = 0.5 + flag", "self.level > 1"),
    "zero": ("", "self.level = -0.0 if flag else 0.0", "str(self.level) == '-0.0'"),
    "string": ("", "self.name = 'b' if flag else 'a'", "self.name == 'b'"),
    "bool or int": ("", "self.level = 1 if flag else True", "type(self.level) is int"),
    "bytes": ("", "self.data = bytes([flag])", "self.data[0]"),
    "bytearray": ("", "self.data = bytearray([flag])", "self.data[0]"),
    "complex": ("", "self.level = complex(0, flag)", "self.level.imag"),
    "vars": ("", "self.flag = flag", "vars(self).get('flag')"),
    "dict": ("", "self.flag = flag", "self.__dict__['flag']"),
    "items": ("", "self.flag = flag", "any(v for k, v in self.__dict__.items() if k == 'flag')"),
    "getattr": ("", "flag and setattr(self, 'flag', True)", "getattr(self, 'flag', False)"),
    "hasattr": ("", "flag and setattr(self, 'flag', False)", "hasattr(self, 'flag')"),
    "slots": ("__slots__ = ('flag',)", "self.flag = flag", "self.flag"),
    "descriptor": ("flag = Computed()", "self.flag = flag", "self.flag"),
    "property": ("@property\n    def flag(self):\n        return REGISTRY[id(self)]", "REGISTRY[id(self)] = flag",
                 "self.flag"),
    "cached property": ("@functools.cached_property\n    def flag(self):\n        return self.kept[0]",
                        "self.kept = [flag]", "self.flag"),
    "own getattr": ("def __getattr__(self, name):\n        return WEAK[self] if name == 'flag' "
                    "else super().__getattr__(name)", "WEAK[self] = flag", "self.flag"),
    "registry": ("", "REGISTRY[id(self)] = flag", "REGISTRY[id(self)]"),
    "weak": ("", "WEAK[self] = flag", "WEAK[self]"),
    "members": ("", "flag and MEMBERS.add(self)", "self in MEMBERS"),
    "by name": ("", "self.key = len(BY_NAME); BY_NAME[self.key] = flag", "BY_NAME[self.key]"),
    "class attribute": ("", "self.kind = generated(flag)", "self.kind.flag"),
    "own class": ("", "self.__class__ = type(type(self).__name__, (type(self),), {'flag': flag})", "type(self).flag"),
    "name of class": ("", "self.__class__ = type('B' if flag else 'A', (type(self),), {})", "self._get_name() == 'B'"),
    "closure": ("", "self.ask = closure_of(flag)", "self.ask()"),
    "box": ("", "self.ask = box_of(flag)", "self.ask()"),
    "default": ("", "self.ask = default_of(flag)", "self.ask()"),
    "keyword default": ("", "self.ask = kwdefault_of(flag)", "self.ask()"),
    "function attribute": ("", "self.ask = attributed(flag)", "self.ask()"),
    "exec": ("", "self.ask = executed(flag)", "self.ask()"),
    "lru": ("", "self.ask = remembered(flag)", "self.ask.cache_info().currsize"),
    "partial": ("", "self.ask = functools.partial(bool, flag)", "self.ask()"),
    "partial attribute": ("", "self.ask = with_attribute(functools.partial(bool), flag)", "self.ask.flag"),
    "method": ("", "self.ask = Plain(flag).method", "self.ask()"),
    "slotted method": ("", "self.ask = Slotted(flag).method", "self.ask()"),
    "builtin method": ("", "self.ask = [0, flag].__getitem__", "self.ask(1)"),
    "itemgetter": ("", "self.ask = operator.itemgetter(int(flag))", "self.ask((False, True))"),
    "callable": ("", "self.ask = Plain(flag)", "self.ask()"),
    "own forward": ("", "self.forward = functools.partial(type(self).forward, self); self.flag = flag", "self.flag"),
    "list": ("", "self.held = [flag]", "self.held[0]"),
    "nested": ("", "self.held = {'a': ({'b': [flag]},)}", "self.held['a'][0]['b'][0]"),
    "order": ("", "self.held = {'b': 0, 'a': 1} if flag else {'a': 1, 'b': 0}", "next(iter(self.held)) == 'b'"),
    "set": ("", "self.held = {8, 0} if flag else {0, 8}", "next(iter(self.held)) == 8"),
    "set of objects": ("", "self.held = {Plain(flag)}", "next(iter(self.held)).flag"),
    "defaultdict": ("", "self.held = collections.defaultdict(closure_of(flag))", "self.held['x']"),
    "missing": ("", "self.held = with_attribute(SubDict(), flag)", "self.held['x']"),
    "chain": ("", "self.held = collections.ChainMap({}, {'x': flag})", "self.held['x']"),
    "proxy": ("", "self.held = types.MappingProxyType({'x': flag})", "self.held['x']"),
    "counter": ("", "self.held = collections.Counter(x=int(flag))", "self.held['x']"),
    "deque": ("", "self.held = collections.deque([1], 2 + flag)", "self.held.maxlen == 3"),
    "array": ("", "self.held = array.array('i', [flag])", "self.held[0]"),
    "numpy": ("", "self.held = numpy.array([flag])", "bool(self.held[0])"),
    "numpy scalar": ("", "self.held = numpy.int64(flag)", "self.held == 1"),
    "fraction": ("", "self.held = fractions.Fraction(1 + flag, 3)", "self.held > 0.5"),
    "decimal": ("", "self.held = decimal.Decimal('1.0' if flag else '1.00')", "str(self.held) == '1.0'"),
    "date": ("", "self.held = datetime.date(2000 + flag, 1, 1)", "self.held.year == 2001"),
    "path": ("", "self.held = pathlib.PurePosixPath('b' if flag else 'a')", "self.held.name == 'b'"),
    "regex": ("", "self.held = re.compile('a', re.I if flag else 0)", "bool(self.held.match('A'))"),
    "struct": ("", "self.held = struct.Struct('q' if flag else 'i')", "self.held.size == 8"),
    "stream": ("", "self.held = io.StringIO('ab'); self.held.seek(int(flag))", "self.held.tell() == 1"),
    "ctypes": ("", "self.held = ctypes.c_int(flag)", "self.held.value"),
    "queue": ("", "self.held = filled(flag)", "self.held.queue[0]"),
    "local": ("", "self.held = local_of(flag)", "self.held.flag"),
    "random": ("", "self.held = random.Random(int(flag))", "self.held.getstate() == random.Random(1).getstate()"),
    "generator": ("", "self.held = torch.Generator().manual_seed(int(flag))", "self.held.initial_seed() == 1"),
    "iterator": ("", "self.held = [0, 1]; self.place = iter(self.held); flag and next(self.place)",
                 "self.place.__length_hint__() == 1"),
    "python generator": ("", "self.held = generator_of(flag)", "self.held.gi_frame.f_locals['flag']"),
    "string subclass": ("", "self.held = with_attribute(SubString('a'), flag)", "self.held.flag"),
    "int subclass": ("", "self.held = with_attribute(SubInt(1), flag)", "self.held.flag"),
    "list subclass": ("", "self.held = with_attribute(SubList(), flag)", "self.held.flag"),
    "enum": ("", "self.held = Level(int(flag))", "self.held.value"),
    "namedtuple": ("", "self.held = Pair(flag, 1)", "self.held.x"),
    "dataclass": ("", "self.held = Options(int(flag))", "self.held.level"),
    "namespace": ("", "self.held = types.SimpleNamespace(flag=flag)", "self.held.flag"),
    "slotted": ("", "self.held = Slotted(flag)", "self.held.flag"),
    "object": ("", "self.held = Plain(flag)", "self.held.flag"),
    "module": ("", "self.held = with_attribute(types.ModuleType('same'), flag)", "self.held.flag"),
    "logger": ("", "self.held = logging.getLogger(f'n{flag}'); self.held.setLevel(10 + flag)", "self.held.level == 11"),
    "shared": ("", "one = [0]; self.one = one; self.two = one if flag else [0]", "self.one is self.two"),
    "hidden module": ("", "self.held = [Hidden(flag)]", "self.held[0].flag"),
    "hidden call": ("", "self.held = (Hidden(flag),)", "self.held[0]()"),
    "parent": ("", "self.held = weakref.ref(KEPT.setdefault(id(self), Hidden(flag)))", "self.held().flag"),
    "training": ("", "self.level = flag", "self.training is not self.level"),
    "grad of parameter": ("", "self.weight.requires_grad_(flag)", "self.weight.requires_grad"),
    "layout of parameter": ("", "self.weight = nn.Parameter(torch.ones(4, 4).t() if flag else torch.ones(4, 4)); "
                            "self.weight.data = torch.ones(4, 8)[:, ::2] if flag else torch.ones(4, 4)",
                            "not self.weight.is_contiguous()"),
    "dtype of buffer": ("", "self.register_buffer('table', torch.ones(4, dtype=torch.int8 if flag else torch.int16))",
                        "self.table.dtype == torch.int8"),
    "no buffer": ("", "self.register_buffer('table', None if flag else torch.ones(4))", "self.table is None"),
    "lasting buffer": ("", "self.register_buffer('table', torch.ones(4), persistent=flag)",
                       "'table' in self.state_dict()"),
    "attribute of parameter": ("", "self.weight.flag = flag", "self.weight.flag"),
    "tensor": ("", "self.table = with_attribute(torch.ones(2), flag)", "self.table.flag"),
    "offset": ("", "self.table = torch.ones(4)[2 * flag :][:2]", "self.table.storage_offset() > 0"),
    "view": ("", "self.table = torch.ones(4)[:] if flag else torch.ones(4)", "self.table._base is not None"),
    "tied": ("", "self.one = torch.ones(4); self.two = self.one[:] if flag else torch.ones(4)",
             "self.one.untyped_storage().data_ptr() == self.two.untyped_storage().data_ptr()"),
    "absent child": ("", "flag and self.register_module('kid', None)", "'kid' in self._modules"),
    "hooks": ("", "flag and self.register_forward_hook(lambda m, a, o: None)", "len(self._forward_hooks) > 0"),
    "now: env": ("", "self.mark = MARK", "os.getenv(f'TREE_{self.mark}') == '1'"),
    "now: file": ("", "self.mark = MARK", "json.loads((HERE / 'flags.json').read_text())[str(self.mark)]"),
    "now: module": ("", "self.mark = MARK", "__import__('tree_flags').FLAGS[self.mark]"),
    # what follows from how the parent calls
    "y is x": ("", "", "y is x"),
    "y shares": ("", "", "y is not None and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()"),
    "y given": ("", "", "y is not None"),
    "y dtype": ("", "", "y is not None and y.dtype != x.dtype"),
    "y parameter": ("", "", "isinstance(y, nn.Parameter)"),
    "y grad": ("", "", "y is not None and y.requires_grad"),
    "x strides": ("", "", "x.stride()[0] == 1"),
    "x not dense": ("", "", "not x.is_contiguous()"),
    "x expanded": ("", "", "0 in x.stride()"),
    "x offset": ("", "", "x.storage_offset() > 0"),
    "mode": ("", "", "mode == 1"),
    "mode type": ("", "", "isinstance(mode, dict)"),
    "mode identity": ("", "", "type(mode) is bool"),
    "mode tuple": ("", "", "isinstance(mode, tuple) and mode[0] > 1"),
    "second call": ("", "self.count = 0", "operator.setitem(self.__dict__, 'count', self.count + 1) or self.count > 1"),
    "rows": ("", "", "x.shape[0] > 3"),
    "context": ("", "", "CURRENT.get()"),
}  # fmt: skip

# states that an export does not find, so that it refuses the line that asks
REFUSED = {"attribute of parameter"}

# a line of forward that export may refuse
FAULTS: dict[str, str] = {
    "branch": "x = x + 1 if x.sum() > 0 else x - 1",
    "helper": "x = decide(x)",
    "generator": "x = torch.stack(list(rows_of(x)))",
    "range": "x = x + sum(range(int(x.abs().sum() * 0 + 2)))",
    "numpy": "x = x + torch.from_numpy(x.detach().numpy())",
    "sorted": "x = torch.stack(sorted(x.unbind(), key=lambda row: float(row.sum())))",
    "count": "x = x * 2 if x[x > 0].shape[0] > 3 else x * 3",
    "assertion": "assert (x < 1e6).all(), 'too large'",
    "format": "x = x + len(f'{float(x.sum()):.1f}')",
    "key": "x = {0: x, 1: x}[int(x.sum() * 0)]",
    "tolist": "x = x * x.sum(0).tolist()[0]",
    "pointer": "x = x + (x.data_ptr() == 7)",
    "keep": "self.seen = x",
    "keep in list": "self.__dict__.setdefault('all_seen', []).append(x)",
    "new buffer": "self.register_buffer('fresh', x * 2)",
    "count calls": "self.times = getattr(self, 'times', 0) + 1",
    "in place": "x = x.clone().add_(1)",
    "packed": "x = pad_packed_sequence(pack_padded_sequence(x.t(), torch.full((4,), len(x))))[0].t()",
    "nonzero": "x = x + x.nonzero().shape[0]",
    "unique": "x = x + x.unique().sum()",
    "repeat": "x = x.repeat_interleave(torch.ones(x.shape[0], dtype=torch.long), 0)",
    "deepcopy": "x = __import__('copy').deepcopy(x)",
    "pickle": "x = x + len(__import__('pickle').dumps(x))",
    "subclass": "x = x.as_subclass(torch.nn.Buffer) + 1",
    "shape": "x = x.reshape(-1, 2).reshape(x.shape)",
    "size": "x = x + (1 if x.shape[0] % 2 else 2)",
    "append": "x = x + len(mode); mode.append(x)",
    "remember": "mode.rows.append(x); x = mode.rows[0] + x",
    "replace rows": "mode.rows = torch.cat([mode.rows, x]); x = x + mode.rows.sum(0)",
    "add rows": "mode.rows.add_(x); x = x + mode.rows",
    "update cache": "x = x + mode.update(x[None, None], x[None, None], 0)[0].sum()",
    "packed sorted": "p = pack_padded_sequence(x[None].repeat(2, 1, 1), torch.tensor([len(x), 1]), batch_first=True); "
    "x = x + p.data.sum()",
    "seed": "x = x + torch.manual_seed(0).initial_seed()",
    "no": "x = x + 1",
}

# what a fault needs of the parent's call, and the faults that a parent's cache is for
NEEDS = {
    "append": "type(mode) is list and ", "remember": "type(mode) is Kept and ",
    "replace rows": "type(mode) is KeptRows and ",
    "add rows": "type(mode) is KeptRows and mode.rows.shape == x.shape and ",
    "update cache": "type(mode) is DynamicCache and ",
}  # fmt: skip
CACHES = {
    "list": ("append",), "own cache": ("remember",), "known cache": ("replace rows", "add rows"),
    "key value cache": ("update cache",),
}  # fmt: skip

# how a node passes what it has to its children
WIRINGS: dict[str, str] = {
    "chain": "x = first(kid(x))",
    "same twice": "x = first(kid(x, x))",
    "view": "x = first(kid(x, x[:]))",
    "copy": "x = first(kid(x, x.clone()))",
    "apart": "x = first(kid(x, torch.ones(2)))",
    "halves": "x = first(kid(x, x.to(torch.float64)))",
    "parameter": "x = first(kid(x, self.weight))",
    "detached": "x = first(kid(x, self.weight.detach()))",
    "transposed": "x = first(kid(x.t().contiguous().t()))",
    "expanded": "x = first(kid(x[:1].expand(x.shape[0], 4)))",
    "shifted": "x = first(kid(torch.cat([x, x])[x.shape[0] :]))",
    "mode": "x = first(kid(x, mode=index))",
    "one": "x = first(kid(x, mode=1))",
    "true": "x = first(kid(x, mode=True))",
    "dict": "x = first(kid(x, mode={'a': index}))",
    "tuple": "x = first(kid(x, mode=(index, x)))",
    "options": "x = first(kid(x, mode=Options(index)))",
    "text": "x = first(kid(x, mode='text'))",
    "keyword": "x = first(kid(x=x, y=x))",
    "list": "kept = []; x = first(kid(x, mode=kept)); x = first(kid(x, mode=kept))",
    "own cache": "kept = Kept(); x = first(kid(x, mode=kept)); x = first(kid(x, mode=kept))",
    "known cache": "kept = KeptRows(torch.zeros(3, 4)); x = first(kid(x, mode=kept)); x = first(kid(x, mode=kept))",
    "key value cache": "kept = DynamicCache(); x = first(kid(x, mode=kept)); x = first(kid(x, mode=kept))",
    "twice": "x = first(kid(first(kid(x))))",
    "twice apart": "x = first(kid(first(kid(x)), mode=1))",
    "longer": "x = first(kid(torch.cat([x, x])))[: x.shape[0]]",
    "direct": "x = first(kid.forward(x))",
    "checkpoint": "x = first(torch.utils.checkpoint.checkpoint(kid, x, use_reentrant=False))",
    "context": "token = CURRENT.set(True); x = first(kid(x)); CURRENT.reset(token)",
    "compared": "x = first(kid(x)) if x.sum() > -1e9 else x",
    "tried": "x = first(kid(x)); contextlib.suppress(ValueError).__enter__()",
    "half": "x = first(kid(x)) if index % 2 else x",
}

OUTPUTS = {
    "tensor": "x", "tuple": "(x,)", "dict": "{'x': x}", "list": "[x]", "odd": "Odd(x)", "pair": "Pair(x, 1)",
    "none": "(x, None)", "twice": "(x, x)", "view": "(x, x[:])", "text": "(x, 'text')",
}  # fmt: skip
# when a node looks at its flag at all
MOMENTS = {
    "always": "{}",
    "in an export": "torch.compiler.is_exporting() and {}",
    "in a compiler": "torch.compiler.is_compiling() and {}",
    "of fakes": "type(x) is not torch.Tensor and {}",
    "with gradients": "torch.is_grad_enabled() and {}",
}
HOOKS = {
    "": "",
    "before": "self.register_forward_pre_hook(lambda m, a: (a[0] * 2, *a[1:]) if a else None)",
    "after": "self.register_forward_hook(lambda m, a, o: o)",
    "before, flag": "self.register_forward_pre_hook(lambda m, a: (decide(a[0]), *a[1:]) if flag and a else None)",
    "after, flag": "self.register_forward_hook(lambda m, a, o: o if not flag or type(o) is Odd else decide(first(o)))",
    "norm": "nn.utils.parametrizations.weight_norm(self, 'weight')",
}
SOURCES = ("literal", "literal", "literal", "env", "file", "module")


@dataclass(frozen=True)
class Node:
    """One module: where its flag is held and comes from, what it does with it, how it calls its children."""

    state: str = "attribute"
    flag: bool = False
    source: str = "literal"
    moment: str = "always"
    fault: str = "no"
    late: bool = True
    wiring: str = "chain"
    output: str = "tensor"
    hook: str = ""
    shared: bool = False
    children: tuple[Node, ...] = ()

    @property
    def kind(self) -> tuple[object, ...]:
        """What its class is made of: nodes that are equal in it share one."""
        return self.state, self.moment, self.fault, self.late, self.wiring, self.output, self.hook, self.shared

    def walk(self) -> Iterator[Node]:
        """The node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def draw_tree(chance: random.Random, *, depth: int, root: bool = True) -> Node:
    """One tree: at depth 2 three to eight nodes, at depth 1 one to three."""
    if root:
        count = (chance.random() < 0.25) if depth == 1 else chance.choice((1, 1, 2))
    else:
        count = chance.randrange(2) if depth else 0
    wiring = chance.choice(list(WIRINGS)) if chance.random() < 0.7 else "chain"
    children = [draw_tree(chance, depth=depth - 1, root=False) for _ in range(count)]
    if children and wiring in CACHES:
        children[0] = replace(children[0], fault=chance.choice(CACHES[wiring]))
    if children and chance.random() < 0.7:  # a twin
        twin = children[0]
        children.append(replace(twin, flag=not twin.flag, source=chance.choice(SOURCES)))
    return Node(
        state=chance.choice(list(STATES)),
        flag=chance.random() < 0.3,
        source=chance.choice(SOURCES),
        moment=chance.choice(list(MOMENTS)) if chance.random() < 0.2 else "always",
        fault=chance.choice(list(FAULTS)) if chance.random() < 0.5 else "branch",
        late=chance.random() < 0.5,
        wiring=wiring,
        output=chance.choice(list(OUTPUTS)) if chance.random() < 0.3 else "tensor",
        hook=chance.choice(list(HOOKS)) if chance.random() < 0.2 else "",
        shared=chance.random() < 0.1,
        children=tuple(children),
    )


# faults that some shim cures, with inputs on which a cure may show that it is wrong
CURABLE: dict[str, str] = {
    "branch": FAULTS["branch"],
    "helper": FAULTS["helper"],
    "clamp": "x = x.clamp(max=1) if x.isnan().any() or x.max() > 1 else x",
    "early": "return x * 0 if x.max() < 0 else x",
    "assertion": FAULTS["assertion"],
    "raises": "x = refused(x)",
    "caught": "x = checked(x)",
    "int": "x = x * int(x.abs().max() * 0 + 2)",
    "length": "x = x[: int((x.sum(1) > -1e9).sum())]",
    "segments": "x = torch.cat([part.softmax(0) for part in x.split([1, int(x.abs().max() * 0) + len(x) - 1])])",
    "count": FAULTS["count"],
    "counter": "self.__dict__['n'] = self.__dict__.get('n', 0) + 1; x = x * self.n if x.sum() > 0 else x",
    "memo": "x = x + self.__dict__.setdefault('first', x.detach().clone()); x = x if x.sum() > 0 else -x",
    "list state": "x = x + float(x.sum() > 0)",
    "sorted": FAULTS["sorted"],
    "tolist": "x = torch.stack([row * (value > 0) for row, value in zip(x, x.sum(1).tolist())])",
    "any": "x = x.masked_fill(x > 0, -1e9).softmax(-1) if (x > 0).any() else x",
    "in place": "x = x.clone(); x[int(x.argmax() * 0)] += 1",
}


def draw_curable(seed: int) -> Node:
    """One module with one fault that some shim may cure."""
    chance = random.Random(seed)
    place = Node(
        flag=True,
        fault=chance.choice(list(CURABLE)),
        late=chance.random() < 0.5,
        output=chance.choice(("tensor", "tensor", "tuple", "odd", "dict")),
        hook=chance.choice(("", "", "after")),
    )
    return place if chance.random() < 0.5 else Node(wiring=chance.choice(("chain", "twice")), children=(place,))


def draw_forest(seed: int, trees: int, *, depth: int) -> tuple[Node, ...]:
    """So many trees; some are twins of an earlier one that differ in one flag somewhere."""
    chance = random.Random(seed)
    made: list[Node] = []
    while len(made) < trees:
        if made and chance.random() < 0.2:
            made.append(edited(chance.choice(made), chance))
        else:
            made.append(draw_tree(chance, depth=depth))
    return tuple(made)


def edited(tree: Node, chance: random.Random) -> Node:
    """The tree with the flag of one node flipped."""
    if tree.children and chance.random() < 0.7:
        place = chance.randrange(len(tree.children))
        kids = list(tree.children)
        kids[place] = edited(kids[place], chance)
        return replace(tree, children=tuple(kids))
    return replace(tree, flag=not tree.flag)


def smaller(tree: Node) -> Iterator[Node]:
    """Trees that are simpler in one thing."""
    plain = Node()
    for name in ("hook", "output", "wiring", "shared", "fault", "moment", "state", "source", "flag", "late"):
        if getattr(tree, name) != getattr(plain, name):
            yield replace(tree, **{name: getattr(plain, name)})
    for place, child in enumerate(tree.children):
        yield child
        yield replace(tree, children=tree.children[:place] + tree.children[place + 1 :])
        for less in smaller(child):
            yield replace(tree, children=(*tree.children[:place], less, *tree.children[place + 1 :]))


@dataclass(frozen=True)
class Written:
    """The files of a forest by name, and the variables of the environment."""

    files: dict[str, str]
    variables: dict[str, str]


def write_forest(trees: tuple[Node, ...], *, dynamic: bool = False) -> Written:
    """The forest as source: `forest.py` with its factory `build`."""
    nodes = [node for tree in trees for node in tree.walk()]
    classes: dict[tuple[object, ...], str] = {}
    for node in nodes:
        classes.setdefault(node.kind, f"K{len(classes)}")
    bodies = {kind: _class_text(name, next(n for n in nodes if n.kind == kind)) for kind, name in classes.items()}
    flags: dict[int, tuple[str, bool]] = {}
    made = [_instance_text(tree, classes, flags) for tree in trees]
    lines = [
        HEADER,
        "KEPT = {}",
        *bodies.values(),
        _FOREST,
        "def build():",
        "    torch.manual_seed(0)",
        "    forest = Forest([\n        " + ",\n        ".join(made) + ",\n    ]).eval()",
        "    x = torch.linspace(-1, 2, 12).reshape(3, 4)",
        "    return forest, (x,)" if not dynamic else _DYNAMIC,
    ]
    table = {number: flag for number, (_, flag) in flags.items()}
    return Written(
        files={
            "forest.py": "\n".join(lines) + "\n",
            "flags.json": _json(table),
            "tree_flags.py": f"FLAGS = {table!r}\n",
        },
        variables={f"TREE_{number}": str(int(flag)) for number, flag in table.items()},
    )


def _json(table: dict[int, bool]) -> str:
    return "{" + ", ".join(f'"{key}": {str(value).lower()}' for key, value in table.items()) + "}"


_DYNAMIC = """    y = torch.linspace(-1, 3, 20).reshape(5, 4)
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    return dict(module=forest, args=(x,), dynamic_shapes=shapes, more_inputs=[((y,), {})])"""

_FOREST = """
class Forest(nn.Module):
    def __init__(self, trees):
        super().__init__()
        self.trees = nn.ModuleList(trees)

    def forward(self, x):
        return x + sum(first(tree(x)) for tree in self.trees)

"""


def _class_text(name: str, node: Node) -> str:
    text, _, expression = STATES[node.state]
    init = [line for line in (STATES[node.state][1], HOOKS[node.hook]) if line]
    kids = "            self.kids.append(self.kids[0])\n" if node.shared else ""
    condition = MOMENTS[node.moment].format(f"{NEEDS.get(node.fault, '')}({expression})")
    asked = f"  # fault: {name}" if node.state in REFUSED else ""
    ask = f"        if {condition}:{asked}\n            {(FAULTS | CURABLE)[node.fault]}  # fault: {name}\n"
    call = f"        for index, kid in enumerate(self.kids):\n            {WIRINGS[node.wiring]}\n"
    return (
        f"class {name}(nn.Module):\n"
        + (f"    {text}\n\n" if text else "")
        + "    def __init__(self, flag, MARK, *kids):\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(3, 4))\n"
        "        self.kids = nn.ModuleList(kids)\n"
        + (f"        if kids:\n{kids}" if kids else "")
        + "".join(f"        {line}\n" for line in init)
        + "\n    def forward(self, x, y=None, mode=None):\n"
        + (call + ask if node.late else ask + call)
        + f"        return {OUTPUTS[node.output]}  # fault, if it is a class that torch does not know\n\n"
    )


def _instance_text(node: Node, classes: dict[tuple[object, ...], str], flags: dict[int, tuple[str, bool]]) -> str:
    number = len(flags)
    flags[number] = node.source, node.flag
    flag = {
        "literal": repr(node.flag),
        "env": f"os.environ['TREE_{number}'] == '1'",
        "file": f"json.loads((HERE / 'flags.json').read_text())['{number}']",
        "module": f"__import__('tree_flags').FLAGS[{number}]",
    }[node.source]
    kids = [_instance_text(child, classes, flags) for child in node.children]
    return f"{classes[node.kind]}({', '.join([flag, str(number), *kids])})"
