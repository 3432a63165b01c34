# mypy: ignore-errors
"""Pairs of modules that differ in hidden state only: of each the first exports, the second does not."""

import array
import collections
import enum
import functools
import math
import random
import types
import weakref

import torch
from torch import nn


def branch(x):
    return x + 1 if x.sum() > 0 else x - 1


def smooth(x):
    return x + 1


class Base(nn.Module):
    def hidden(self):
        raise NotImplementedError

    def forward(self, x):
        return branch(x) if self.hidden() else smooth(x)


class Slots(Base):
    __slots__ = ("flag",)

    def hidden(self):
        return self.flag


REGISTRY = {}


class Registry(Base):
    def hidden(self):
        return REGISTRY[id(self)]


WEAK = weakref.WeakKeyDictionary()


class Weak(Base):
    def hidden(self):
        return WEAK[self]


class Descriptor:
    def __init__(self):
        self.values = weakref.WeakKeyDictionary()

    def __get__(self, instance, owner):
        return self if instance is None else self.values[instance]

    def __set__(self, instance, value):
        self.values[instance] = value


class Described(Base):
    flag = Descriptor()

    def hidden(self):
        return self.flag


class Random(Base):
    def hidden(self):
        return self.random.getstate()[1][0] == self.first


class Vars(Base):
    def hidden(self):
        return vars(self).get("flag", 0)


class Loop(Base):
    def hidden(self):
        return any(v for k, v in self.__dict__.items() if k == "flag")


class Factory(Base):
    def hidden(self):
        return self.table["missing"]


class Maxlen(Base):
    def hidden(self):
        return self.queue.maxlen == 3


class Attribute(Base):
    def hidden(self):
        return getattr(self.function, "flag", False)


class TensorAttribute(Base):
    def hidden(self):
        return getattr(self.table, "flag", False)


class Offset(Base):
    def hidden(self):
        return self.table.storage_offset() > 0


class SubString(str):
    pass


class Str(Base):
    def hidden(self):
        return self.name.flag


class Colour(enum.Enum):
    A = 0
    B = 1


class Enumerated(Base):
    def hidden(self):
        return self.colour.value


class Lru(Base):
    def hidden(self):
        return self.function.cache_info().currsize


class Arr(array.array):
    pass


class Array(Base):
    def hidden(self):
        return self.data[0]


class Absent(Base):
    def hidden(self):
        return "kid" not in self._modules


class Modules(Base):
    def hidden(self):
        return self.module.flag


class Call(Base):
    def hidden(self):
        return self.function()


class Sets(Base):
    def hidden(self):
        return next(iter(self.members)).flag


class Member:
    def __init__(self, flag):
        self.flag = flag

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return True


class Flags(enum.Flag):
    A = 1
    B = 2


class Flagged(Base):
    def hidden(self):
        return self.flags.value & 8


class Shared(Base):
    def hidden(self):
        return self.one is not self.two


class Aliased(Base):
    def hidden(self):
        return self.one.untyped_storage().data_ptr() != self.two.untyped_storage().data_ptr()


class Ordered(Base):
    def hidden(self):
        return next(iter(self.members)) == 8


class Metadata(torch.Tensor):
    pass


class Subclass(Base):
    def hidden(self):
        return self.table.flag


class Settings:
    __slots__ = ("flag",)


class SlotSettings(Base):
    def hidden(self):
        return self.settings.flag


class NoReturn(nn.Module):
    def forward(self, x):
        return Odd(x) if WEAK[self] else x + 1


class Odd:
    def __init__(self, x):
        self.x = x


class Cell(Base):
    def hidden(self):
        return self.function()


def put(kind, **attributes):
    m = kind()
    for k, v in attributes.items():
        setattr(m, k, v)
    return m


def pair(kind, name, a, b):
    return put(kind, **{name: a}), put(kind, **{name: b})


def function(flag=None):
    def f():
        pass

    if flag is not None:
        f.flag = flag
    return f


def made(flag):
    space = {"flag": flag}
    exec("def f():\n    return flag\n", space)
    return space["f"]


def made_nested(flag):
    space = {"__name__": __name__}
    exec(f"def f():\n    return (lambda: {flag})()\n", space)
    return space["f"]


def cached(n):
    f = functools.lru_cache(abs)
    for i in range(n):
        f(i)
    return f


def named_module(flag):
    m = types.ModuleType("same")
    m.flag = flag
    return m


def redefined(flag):
    def hidden(self):
        return flag

    return type("Same", (Base,), {"hidden": hidden, "__module__": __name__, "__qualname__": "Same"})()


def with_attr(t, **a):
    for k, v in a.items():
        setattr(t, k, v)
    return t


def part(flag):
    p = functools.partial(get_flag_of, None)
    p.flag = flag
    return p


def get_flag_of(_):
    return False


class Partial(Base):
    def hidden(self):
        return self.function.flag


class Read(Base):
    """Whatever `asks` says of what it holds."""

    def hidden(self):
        return self.asks(self.held)


def read(asks, one, other):
    kind = type(f"Read{len(READ)}", (Read,), {"asks": staticmethod(asks), "__module__": __name__})
    READ.append(kind)
    globals()[kind.__name__] = kind
    return pair(kind, "held", one, other)


READ = []


def pairs():
    out = {}
    one, two = Slots(), Slots()
    one.flag, two.flag = False, True
    out["slots"] = one, two
    for name, kind, store in (
        ("registry", Registry, lambda m, v: REGISTRY.__setitem__(id(m), v)),
        ("weak", Weak, WEAK.__setitem__),
        ("odd", NoReturn, WEAK.__setitem__),
        ("descriptor", Described, lambda m, v: setattr(m, "flag", v)),
    ):
        one, two = kind(), kind()
        store(one, False)
        store(two, True)
        out[name] = one, two
    r = random.Random(5)
    one, two = (
        put(Random, random=random.Random(1), first=r.getstate()[1][0]),
        put(Random, random=random.Random(5), first=r.getstate()[1][0]),
    )
    out["random"] = one, two
    out["vars"] = pair(Vars, "flag", 0, 1)
    out["loop"] = pair(Loop, "flag", 0, 1)
    unity = lambda: 1  # noqa: E731
    out["defaultdict"] = pair(Factory, "table", collections.defaultdict(int), collections.defaultdict(unity))
    out["deque"] = pair(Maxlen, "queue", collections.deque([1], 2), collections.deque([1], 3))
    out["function attribute"] = pair(Attribute, "function", function(), function(1))
    out["tensor attribute"] = pair(
        TensorAttribute, "table", with_attr(torch.ones(2), flag=0), with_attr(torch.ones(2), flag=1)
    )
    out["offset"] = pair(Offset, "table", torch.ones(4)[:2], torch.ones(4)[2:])
    out["string"] = pair(Str, "name", with_attr(SubString("a"), flag=0), with_attr(SubString("a"), flag=1))
    out["enum"] = pair(Enumerated, "colour", Colour.A, Colour.B)
    out["lru"] = pair(Lru, "function", cached(0), cached(2))
    out["array"] = pair(Array, "data", Arr("i", [0]), Arr("i", [1]))
    one, two = Absent(), Absent()
    one.register_module("kid", None)
    out["absent"] = one, two
    out["modules"] = pair(Modules, "module", named_module(0), named_module(1))
    out["exec"] = pair(Call, "function", made(0), made(1))
    out["nested"] = pair(Call, "function", made_nested(0), made_nested(1))
    out["redefined"] = redefined(0), redefined(1)
    out["set"] = pair(Sets, "members", {Member(0)}, {Member(1)})
    out["flags"] = pair(Flagged, "flags", Flags(3), Flags.A)
    shared = [1]
    out["shared"] = put(Shared, one=shared, two=shared), put(Shared, one=[1], two=[1])
    t, u = torch.ones(4), torch.ones(4)
    out["aliased"] = put(Aliased, one=t[:2], two=t[:2]), put(Aliased, one=t[:2], two=u[:2])
    a, b = set(), set()
    a.add(0)
    a.add(8)
    b.add(8)
    b.add(0)
    out["order"] = pair(Ordered, "members", a, b)
    out["subclass"] = pair(
        Subclass,
        "table",
        with_attr(torch.ones(2).as_subclass(Metadata), flag=0),
        with_attr(torch.ones(2).as_subclass(Metadata), flag=1),
    )
    s, u = Settings(), Settings()
    s.flag, u.flag = 0, 1
    out["slot settings"] = pair(SlotSettings, "settings", s, u)
    out["partial"] = pair(Partial, "function", part(0), part(1))
    out["NaN"] = read(lambda held: math.copysign(1, held) < 0, math.nan, -math.nan)
    for name, value in (("__name__", "other"), ("__doc__", "other"), ("__annotations__", {"x": int})):
        other = function()
        setattr(other, name, value)
        out[name.strip("_")] = read(lambda held, n=name, v=value: getattr(held, n) == v, function(), other)
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    two.grad = torch.ones(2)
    one, two = torch.ones(2), torch.ones(2)
    two.mul_(1)
    out["written into"] = read(lambda held: held._version > 0, one, two)
    out["gradient"] = read(lambda held: held.grad is not None, one, two)
    return out


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        for i, (name, (one, two)) in enumerate(pairs().items()):
            self.add_module(f"p{i}_{name.replace(' ', '_')}_a", one)
            self.add_module(f"p{i}_{name.replace(' ', '_')}_b", two)

    def forward(self, x):
        for child in self.children():
            if child is not None:
                child(x)
        return x


def build():
    return Both().eval(), (torch.ones(3),)
