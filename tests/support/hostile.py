"""Targets and inputs that misbehave, as data: what each does, the exit codes that are right, a word of the line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostile_states import KIDS, OFTEN, RETURNS, STATES

ROOT = Path(__file__).parents[2]
SCAN = ("scan", "target.py:build", "--no-cache", "--no-cure", "-q")
LIMITS = {"--build-timeout": ("--build-timeout", "3"), "memory": ("--build-memory", "1500")}
"""What must be said, and the limit with which it is said within seconds."""


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """One case. `prepare` writes its files into an empty folder; `arguments` are the command line, run in there.

    `codes` are the exit codes that are right; `word` stands on stderr unless the exit code is 0 or 1.
    """

    name: str
    arguments: tuple[str, ...]
    prepare: Callable[[Path], None]
    codes: frozenset[int] = frozenset({3})
    word: str = ""
    often: bool = False


# --- what the code of a target does: at its import, in its factory, in its forward

HEAD = """\
import builtins, ctypes, gc, os, resource, select, shutil, signal, subprocess, sys, threading, time
import torch
class Loud(Exception):
    pass
class Mute(Exception):
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__
class Leaving(Exception):
    def __str__(self): sys.exit(5)
class Wrong(Exception):
    def __str__(self): return 7
class Outside(BaseException):
    pass
class Named(type):
    @property
    def __name__(cls): raise ValueError("no name")
def boom(*_, **__): raise Loud("replaced")
def raise_(error): raise error
"""
FINE = frozenset({0})

# code, right exit codes, word on stderr
ACTS: Mapping[str, tuple[str, frozenset[int], str]] = {
    # it leaves
    "sys.exit": ("sys.exit('bye')", frozenset({3}), "SystemExit"),
    "sys.exit(0)": ("sys.exit(0)", frozenset({3}), "SystemExit"),
    "os._exit": ("os._exit(7)", frozenset({3}), "exit code 7"),
    "os._exit(0)": ("os._exit(0)", frozenset({3}), "exit code 0"),
    "abort": ("os.abort()", frozenset({3}), "SIGABRT"),
    "segfault": ("ctypes.string_at(0)", frozenset({3}), "SIGSEGV"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", frozenset({3}), "SIGKILL"),
    "terminate": ("os.kill(os.getpid(), signal.SIGTERM)", frozenset({3}), "SIGTERM"),
    "kill group": ("os.killpg(0, signal.SIGKILL)", frozenset({3}), "SIGKILL"),
    # it raises
    "keyboard interrupt": ("raise KeyboardInterrupt", frozenset({3}), "KeyboardInterrupt"),
    "generator exit": ("raise GeneratorExit('x')", frozenset({3}), "GeneratorExit"),
    "base exception": ("raise Outside('x')", frozenset({3}), "Outside"),
    "stop iteration": ("raise StopIteration('x')", frozenset({3}), "StopIteration"),
    "str raises": ("raise Mute", frozenset({3}), "Mute"),
    "str exits": ("raise Leaving", frozenset({3}), "Leaving"),
    "str is no str": ("raise Wrong", frozenset({3}), "Wrong"),
    "long message": ("raise Loud('x' * 100_000_000)", frozenset({3}), "Loud"),
    "many lines": ("raise Loud('x\\n' * 10_000_000)", frozenset({3}), "Loud"),
    "long repr": ("raise Loud([0] * 3_000_000)", frozenset({3}), "Loud"),
    "control characters": (r"raise Loud('\x1b]0;t\x07\x1b[31m\x9b2J\r\u202e\u2066\u200f\u061c\u2028 x')", frozenset({3}), "Loud"),
    "surrogate": (r"raise Loud('a\udcff\ud800')", frozenset({3}), "Loud"),
    "html": ("raise Loud('<script>alert(1)</script> [red]x[/red] `x` |')", frozenset({3}), "Loud"),
    "group": ("raise BaseExceptionGroup('g', [Loud('a'), KeyboardInterrupt()])", frozenset({3}), "ExceptionGroup"),
    "deep group": ("e = Loud('x')\n    for _ in range(3000): e = ExceptionGroup('g', [e])\n    raise e", frozenset({3}), "ExceptionGroup"),
    "long chain": ("e = None\n    for _ in range(3000):\n        n = Loud('x'); n.__cause__ = e; e = n\n    raise e", frozenset({3}), "Loud"),
    "bad notes": ("e = Loud('x'); e.__notes__ = [Mute(), 7]; raise e", frozenset({3}), "Loud"),
    "recursion": ("f = lambda: f()\n    f()", frozenset({3}), "RecursionError"),
    "no name": ("raise type.__new__(Named, 'Odd', (Exception,), {})('x')", frozenset({3}), "Odd"),
    "warnings are errors": ("import warnings; warnings.simplefilter('error'); warnings.warn('loud')", frozenset({3}), "loud"),
    # it takes what is not its own
    "close 0": ("os.close(0)", frozenset({0, 3}), ""),
    "close 1": ("os.close(1)", frozenset({0, 3}), ""),
    "close 2": ("os.close(2)", frozenset({0, 3}), ""),
    "close 0 to 2": ("os.closerange(0, 3)", frozenset({0, 3}), ""),
    "close all but 0 to 2": ("os.closerange(3, 5000)", frozenset({0, 3}), ""),
    "close all": ("os.closerange(0, 5000)", frozenset({0, 3}), ""),
    "replace descriptors": ("n = os.open(os.devnull, os.O_RDWR)\n    for d in range(200):\n        if d != n: os.dup2(n, d)", frozenset({0, 3}), ""),
    "close streams": ("sys.stdout.close(); sys.stderr.close()", frozenset({0, 1}), ""),
    "no streams": ("sys.stdout = sys.stderr = sys.stdin = None", frozenset({0}), ""),
    "chdir": ("os.chdir('/')", frozenset({0}), ""),
    "delete folder": ("shutil.rmtree(os.path.dirname(os.path.abspath(__file__)))", frozenset({0, 1, 3}), ""),
    "working directory gone": ("os.mkdir('w'); os.chdir('w'); os.rmdir(os.getcwd())", frozenset({0, 1, 3}), ""),
    "read stdin": ("sys.stdin.read()", frozenset({0}), ""),
    "input": ("input('> ')", frozenset({3}), "EOFError"),
    "leave the group": ("os.setpgid(0, os.getpgid(os.getppid()))", frozenset({0, 3}), ""),
    "no descriptors": ("resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", frozenset({0, 1, 3}), ""),
    "no processor time": ("resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n    while True: pass", frozenset({3}), ""),
    "little memory": ("resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))", frozenset({0, 1, 3}), ""),
    "no recursion": ("sys.setrecursionlimit(60)", frozenset({0, 1, 3}), ""),
    # it patches
    "no torch.export.export": ("torch.export.export = None", frozenset({0, 1, 3}), ""),
    "torch.export.export raises": ("torch.export.export = boom", frozenset({0, 1, 3}), ""),
    "Tensor.size raises": ("torch.Tensor.size = boom", frozenset({1, 3}), ""),
    "Tensor.detach raises": ("torch.Tensor.detach = boom", frozenset({0, 1, 3}), ""),
    "Tensor.__repr__ raises": ("torch.Tensor.__repr__ = boom", frozenset({0, 1, 3}), ""),
    "Tensor.device raises": ("torch.Tensor.device = property(boom)", frozenset({1, 3}), ""),
    "named_modules raises": ("torch.nn.Module.named_modules = boom", frozenset({1, 3}), ""),
    "parameters raises": ("torch.nn.Module.parameters = boom", frozenset({1, 3}), ""),
    "no torch.no_grad": ("del torch.no_grad", frozenset({1, 3}), ""),
    "excepthook": ("sys.excepthook = boom; threading.excepthook = boom", FINE, ""),
    "SIGCHLD ignored": ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", FINE, ""),
    "SIGCHLD taken": ("signal.signal(signal.SIGCHLD, boom)", frozenset({0, 3}), ""),
    "no wake-up": ("signal.set_wakeup_fd(-1)", FINE, ""),
    "signals blocked": ("signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))", FINE, ""),
    "children reaped": ("threading.Thread(target=lambda: [time.sleep(0.01) or reap() for _ in range(1000)], daemon=True).start()", FINE, ""),
    "modules cleared": ("sys.modules.clear()", frozenset({0, 1, 3}), ""),
    "torch unloaded": ("[sys.modules.pop(n) for n in list(sys.modules) if n.startswith('torch')]", frozenset({0, 1, 3}), ""),
    "exportdoctor unloaded": ("[sys.modules.pop(n) for n in list(sys.modules) if n.startswith('exportdoctor')]", FINE, ""),
    "no print": ("builtins.print = None", FINE, ""),
    "no open": ("builtins.open = boom", frozenset({0, 1, 3}), ""),
    "no len": ("del builtins.len", frozenset({0, 1, 3}), ""),
    "no import": ("builtins.__import__ = boom", frozenset({0, 1, 3}), ""),
    "no os.write": ("os.write = boom", frozenset({0, 3}), ""),
    "no os._exit": ("os._exit = boom", frozenset({0, 3}), ""),
    "no os.fork": ("os.fork = boom", frozenset({0, 1, 3}), ""),
    "no clock": ("time.perf_counter = time.monotonic = time.time = boom", frozenset({0, 1, 3}), ""),
    "trace": ("sys.settrace(boom)", frozenset({0, 1, 3}), ""),
    "no environment": ("os.environ.clear()", FINE, ""),
    "no path": ("sys.path.clear()", FINE, ""),
    "at exit": ("import atexit; atexit.register(time.sleep, 1000)", FINE, ""),
    # it prints
    "megabytes": ("print('x' * 30_000_000)", FINE, ""),
    "escapes": (r"print('\x1b[2J\x9b2J\u202e'); os.write(2, b'\x1b[2J'); os.write(1, b'\x1b[2J')", FINE, ""),
    "protocol": ("""os.write(1, b'{"say":"refused","message":"forged","fault":"usage"}\\n')""", FINE, ""),
    # it multiplies
    "fork": ("os.fork()", FINE, ""),
    "fork that stays": ("if not os.fork(): time.sleep(1000)", FINE, ""),
    "fork, then exit": ("if os.fork(): os._exit(3)\n    time.sleep(1000)", frozenset({3}), "exit code 3"),
    "daemon, then exit": ("if os.fork(): os._exit(3)\n    os.setsid(); time.sleep(20); os._exit(0)", frozenset({3}), "exit code 3"),
    "process": ("subprocess.Popen(['sleep', '30'])", FINE, ""),
    "thread": ("threading.Thread(target=time.sleep, args=(1000,)).start()", FINE, ""),
    "thread that raises": ("threading.Thread(target=boom).start()", FINE, ""),
    # it does not end
    "loop": ("while True: pass", frozenset({3}), "--build-timeout"),
    "sleep": ("time.sleep(1000)", frozenset({3}), "--build-timeout"),
    "poll": ("while True: time.sleep(0.01)", frozenset({3}), "--build-timeout"),
    "lock": ("one = threading.Lock(); one.acquire(); one.acquire()", frozenset({3}), "--build-timeout"),
    "pipe": ("os.read(os.pipe()[0], 1)", frozenset({3}), "--build-timeout"),
    "pause": ("signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)); signal.pause()", frozenset({3}), "--build-timeout"),
    "hidden loop": ("os.setpgid(0, os.getpgid(os.getppid()))\n    while True: pass", frozenset({3}), "--build-timeout"),
    "stubborn loop": ("while True:\n        try:\n            while True: pass\n        except BaseException: pass", frozenset({3}), "--build-timeout"),
    "allocate": ("kept = []\n    while True: kept.append(bytearray(b'x' * (1 << 24)))", frozenset({3}), "memory"),
    "allocate tensors": ("kept = []\n    while True: kept.append(torch.ones(1 << 22))", frozenset({3}), "memory"),
    "one large tensor": ("torch.ones(1 << 46)", frozenset({3}), "memory"),
    "large number": ("7 ** (7 ** 12)", frozenset({3}), "--build-timeout"),
}  # fmt: skip

PLACES = ("import", "factory", "forward")
_OFTEN = frozenset({
    ("import", "sys.exit"), ("factory", "os._exit"), ("forward", "segfault"), ("forward", "generator exit"),
    ("factory", "str raises"), ("forward", "long message"), ("factory", "control characters"), ("factory", "close all"),
    ("factory", "close 0 to 2"), ("factory", "delete folder"), ("factory", "SIGCHLD ignored"), ("factory", "no len"),
    ("factory", "fork"), ("factory", "daemon, then exit"), ("forward", "lock"), ("factory", "allocate"),
})  # fmt: skip


def _factory_text(place: str, act: str) -> str:
    def body(where: str) -> str:
        return f"    {act}\n" if place == where else ""

    return (
        f"{HEAD}def reap():\n    try: os.waitpid(-1, os.WNOHANG)\n    except OSError: pass\n"
        f"def once():\n{body('import')}    return None\nonce()\n"
        f"class M(torch.nn.Linear):\n    def forward(self, x):\n{body('forward')}        return super().forward(x)\n"
        f"def build():\n{body('factory')}    return M(2, 2), (torch.ones(3, 2),)\n"
    ).replace("    def forward(self, x):\n    ", "    def forward(self, x):\n        ")


def _deepen(text: str) -> str:
    return text.replace("\n    ", "\n        ")


def _writes(files: Mapping[str, str | bytes]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return prepare


def _code_cases() -> Iterator[Hostile]:
    for name, (act, codes, word) in {**ACTS, **STATES}.items():
        for place in PLACES:
            text = _factory_text(place, _deepen(act) if place == "forward" else act)
            # what ends a process in a forward may end the attempt alone
            yield Hostile(
                name=f"{place}: {name}",
                arguments=(*SCAN, *LIMITS.get(word, ())),
                prepare=_writes({"target.py": text}),
                codes=codes,
                word=word,
                often=(place, name) in _OFTEN.union(OFTEN),
            )


# --- the same in commands that are no scan

VERBS: Mapping[str, tuple[str, ...]] = {
    "inputs": ("inputs", "target.py:build"),
    "numbers": ("numbers", "target.py:build", "--draw", "0", "-q"),
    "export": ("export", "target.py:build", "--to", "pt2", "--shims", "none", "-q"),
}


def _verb_cases() -> Iterator[Hostile]:
    for verb, words in VERBS.items():
        for name in ("sys.exit(0)", "os._exit(0)", "segfault", "str raises", "keyboard interrupt", "close all", "loop"):
            for place in ("factory", "forward"):
                act, codes, word = ACTS[name]
                unasked = verb == "inputs" and place == "forward"
                yield Hostile(
                    name=f"{verb}: {place}: {name}",
                    arguments=(*words, "--build-timeout", "8") if name == "loop" else words,
                    prepare=_writes({"target.py": _factory_text(place, _deepen(act) if place == "forward" else act)}),
                    codes=FINE if unasked else codes | {1} if name == "close all" else codes,
                    word="" if unasked else word,
                )


# --- what a factory returns

ANSWERS: Mapping[str, tuple[str, frozenset[int]]] = {
    "nothing": ("return None", frozenset({3})),
    "a mapping that raises": ("import collections.abc\n    class D(dict):\n        __getitem__ = get = __contains__ = __iter__ = boom\n    return D(module=torch.nn.Linear(2, 2))", frozenset({3})),
    "an endless tree": ("class M(torch.nn.Module):\n        def named_modules(self, *a, **k):\n            while True: yield 'x', self\n    return M(), ()", frozenset({3})),
    "a module that contains itself": ("m = torch.nn.Linear(2, 2); m.__dict__['_modules']['me'] = m\n    return m, (torch.ones(1, 2),)", frozenset({0, 1, 3})),
    "parameters that are no tensors": ("class M(torch.nn.Module):\n        def parameters(self, recurse=True): return [1, 2]\n        def forward(self, x): return x\n    return M(), (torch.ones(1),)", frozenset({0, 1, 3})),
    "a class that lies": ("class M(torch.nn.Module):\n        __class__ = property(boom)\n        def forward(self, x): return x\n    return M(), (torch.ones(1),)", frozenset({0, 1, 3})),
    "attributes that raise": ("class M(torch.nn.Module):\n        __getattr__ = boom\n        def forward(self, x): return x\n    return M(), (torch.ones(1),)", frozenset({0, 1, 3})),
    "no forward": ("return torch.nn.Module(), ()", frozenset({3})),
    "too few inputs": ("return torch.nn.Linear(2, 2), ()", frozenset({3})),
    "inputs of the wrong shape": ("return torch.nn.Linear(2, 2), (torch.ones(3),)", frozenset({3})),
    "an input that cannot be copied": ("class I:\n        __deepcopy__ = __reduce_ex__ = boom\n    return torch.nn.Identity(), (I(),)", frozenset({0, 1, 3})),
    "an input whose copy hangs": ("class I:\n        def __deepcopy__(self, memo): time.sleep(1000)\n    return torch.nn.Identity(), (I(),)", frozenset({1, 3})),
    "an input whose repr raises": ("class I:\n        __repr__ = __str__ = __hash__ = __eq__ = boom\n    return torch.nn.Identity(), (I(),)", frozenset({0, 1, 3})),
    "an output whose repr raises": ("class I:\n        __repr__ = __str__ = __hash__ = __eq__ = __bool__ = boom\n    class M(torch.nn.Module):\n        def forward(self, x): return I()\n    return M(), (torch.ones(1),)", frozenset({1, 3})),
    "bad dynamic shapes": ("return torch.nn.Linear(2, 2), (torch.ones(3, 2),), {}, {'nothing': {7: 8}}", frozenset({1, 3})),
    "absurd dynamic shapes": ("return torch.nn.Linear(2, 2), (torch.ones(3, 2),), {}, [[[[{}]]]]", frozenset({1, 3})),
    "more inputs that fail": ("return dict(module=torch.nn.Linear(2, 2), args=(torch.ones(3, 2),), more_inputs=[(torch.ones(3),)], dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))", frozenset({0, 1, 3})),
    "a name with control characters": (r"m = torch.nn.Sequential(); m._modules['\x1b[31m\u202e\n<b>|`'] = type('A\x9b\ud800', (torch.nn.Linear,), {})(2, 2)"
                                       "\n    return m, (torch.ones(1, 2),)", frozenset({0, 1, 3})),
    "a name without end": ("m = torch.nn.Sequential(); m._modules['x' * 1_000_000] = torch.nn.Linear(2, 2)\n    return m, (torch.ones(1, 2),)", frozenset({0, 1, 3})),
    "a generator": ("yield 1", frozenset({3})),
    "a coroutine": ("pass\nasync def build(): pass", frozenset({3})),
}  # fmt: skip


def _answer_cases() -> Iterator[Hostile]:
    for name, (code, codes) in {**ANSWERS, **RETURNS}.items():
        yield Hostile(
            name=f"returns {name}",
            arguments=(*SCAN, "--build-timeout", "6"),
            prepare=_writes({"target.py": f"{HEAD}{KIDS}def build():\n    {code}\n"}),
            codes=codes,
            often=name in ("an endless tree", "a mapping that raises", "a name with control characters"),
        )


# --- files that are no factory, and names

FILES: Mapping[str, tuple[bytes, frozenset[int]]] = {
    "no Python": (b"this is (no Python", frozenset({3})),
    "null bytes": (b"\0\0\0", frozenset({3})),
    "latin-1": (b"x = '\xff'\ndef build(): pass\n", frozenset({3})),
    "deep": (b"x = " + b"(" * 5000 + b")" * 5000 + b"\ndef build(): pass\n", frozenset({3})),
    "deep tree": (b"x = " + b"-" * 100_000 + b"1\ndef build(): pass\n", frozenset({3})),
    "bad escapes": (b"x = '\\d'\ndef build(): return None\n", frozenset({3})),
    "empty": (b"", frozenset({2})),
    "without the name": (b"def other(): pass\n", frozenset({2})),
    "a name that is no function": (b"build = 7\n", frozenset({3})),
    "an import of itself": (b"import target\ndef build(): return None\n", frozenset({3})),
    "a missing import": (b"import no_such_module\ndef build(): pass\n", frozenset({3})),
}


def _file_cases() -> Iterator[Hostile]:
    scan = SCAN
    for name, (content, codes) in FILES.items():
        yield Hostile(
            name=f"file: {name}", arguments=scan, prepare=_writes({"target.py": content}), codes=codes,
            often=name in ("deep", "null bytes"),
        )  # fmt: skip
    special: Mapping[str, Callable[[Path], None]] = {
        "a folder": lambda folder: (folder / "target.py").mkdir(),
        "a pipe": lambda folder: os.mkfifo(folder / "target.py"),
        "a dangling link": lambda folder: (folder / "target.py").symlink_to("nowhere"),
        "a link to itself": lambda folder: (folder / "target.py").symlink_to("target.py"),
        "/dev/zero": lambda folder: (folder / "target.py").symlink_to("/dev/zero"),
        "a neighbour without end": _neighbour_without_end,
        "too large": lambda folder: os.truncate(_touch(folder / "target.py"), 1 << 40),
    }
    for name, prepare in special.items():
        yield Hostile(name=f"file is {name}", arguments=scan, prepare=prepare, codes=frozenset({2, 3}), often=True)
    for name, ref in {
        "long": "x" * 5000 + ".py:build",
        "long folder": "./" + "x" * 5000,
        "long hub id": "a/" + "x" * 5000,
        "long preset": "x" * 100_000,
        "control characters": "./\x1b[31m\u202e\x9b\n.py:build",
        "surrogate": "./\udcff.py:build",
        "nobody's home": "~nobody-of-that-name/x.py:build",
        "empty": "",
        "space": " ",
        "dash": "-",
        "a null byte": "./a\0b",
    }.items():
        yield Hostile(
            name=f"ref: {name}", arguments=("scan", "-q", "--", ref), prepare=_writes({}), codes=frozenset({2, 3}),
            often=True,
        )  # fmt: skip


def _touch(path: Path) -> Path:
    path.touch()
    return path


def _neighbour_without_end(folder: Path) -> None:
    (folder / "target.py").write_text("import helper\ndef build(): return None\n")
    (folder / "helper.py").symlink_to("/dev/zero")


# --- configurations and checkpoints

SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip


def _changed(**values: object) -> bytes:
    return json.dumps({**SMALL, **values}).encode()


CONFIGS: Mapping[str, bytes] = {
    "no JSON": b"{",
    "empty": b"",
    "a list": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "an empty object": b"{}",
    "binary": bytes(range(256)),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "deep": b"[" * 100_000,
    "a long number": b'{"model_type": ' + b"9" * 10_000 + b"}",
    "many keys": json.dumps({f"k{i}": i for i in range(20_000)}).encode(),
    "control characters": json.dumps({"\x1b[31m\u202e": 1}).encode(),
    "unknown model type": _changed(model_type="no_such_model", architectures=[]),
    "model type is a list": _changed(model_type=["llama"], architectures=[]),
    "model type is an object": _changed(model_type={"a": 1}),
    "unknown architecture": _changed(architectures=["NoSuchModel"], model_type="nothing"),
    "architectures is a number": _changed(architectures=7),
    "architectures is a string": _changed(architectures="LlamaForCausalLM"),
    "architectures of numbers": _changed(architectures=[7, None]),
    "architecture is no model": _changed(architectures=["logging"]),
    "architecture is a configuration": _changed(architectures=["LlamaConfig"]),
    "architecture of another": _changed(architectures=["BertModel"]),
    "many layers": _changed(num_hidden_layers=10**9),
    "endless layers": _changed(num_hidden_layers=10**30),
    "infinitely many layers": _changed(num_hidden_layers=float("inf")),
    "negative layers": _changed(num_hidden_layers=-1),
    "negative size": _changed(hidden_size=-16),
    "no size": _changed(hidden_size=0),
    "size is a string": _changed(hidden_size="16"),
    "size is null": _changed(hidden_size=None),
    "size is a list": _changed(hidden_size=[16]),
    "size is an object": _changed(hidden_size={"a": 1}),
    "size is no number": _changed(hidden_size=float("nan")),
    "size is a fraction": _changed(hidden_size=16.5),
    "size is true": _changed(hidden_size=True),
    "heads are a string": _changed(num_attention_heads="two"),
    "a name of 5,000 characters": _changed(**{"x" * 5000: 1}, model_type="y" * 5000, architectures=["Z" * 5000]),
    "names with bidi": _changed(model_type="\u202e\x1b[31m", architectures=["\u2066<b>\x9b"]),
    "huge size": _changed(hidden_size=10**12),
    "huge vocabulary": _changed(vocab_size=10**15),
    "no vocabulary": _changed(vocab_size=0),
    "negative vocabulary": _changed(vocab_size=-5),
    "no heads": _changed(num_attention_heads=0),
    "negative heads": _changed(num_attention_heads=-2),
    "heads that do not divide": _changed(num_attention_heads=3, num_key_value_heads=3),
    "no positions": _changed(max_position_embeddings=0),
    "unknown activation": _changed(hidden_act="no_such_function"),
    "unknown rope": _changed(rope_parameters={"rope_type": "no_such_rope", "rope_theta": 1.0}),
    "rope is a number": _changed(rope_parameters=7),
    "dtype": _changed(dtype="no_such_dtype"),
    "quantized": _changed(quantization_config={"quant_method": "no_such_method"}),
    "attention": _changed(_attn_implementation="no_such_attention"),
    "vision is a list": _changed(vision_config=[1]),
    "patch size is a string": json.dumps({"model_type": "vit", "patch_size": "x", "image_size": 8}).encode(),
    "patch size is zero": json.dumps({"model_type": "vit", "patch_size": 0, "image_size": 8}).encode(),
    "huge image": json.dumps({"model_type": "vit", "patch_size": 1, "image_size": 10**9}).encode(),
    "huge buffers": json.dumps({"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 10**7}).encode(),
    "merge size is a string": json.dumps({"model_type": "qwen2_5_vl", "image_token_id": 5, "vision_config": {"spatial_merge_size": "x", "patch_size": []}}).encode(),
}  # fmt: skip
FORGIVEN = (
    "many keys", "negative layers", "no positions", "architectures is a string", "size is a string", "dtype", "attention",
    "quantized", "architecture of another", "architecture is no model", "architecture is a configuration",
    "size is true", "size is a fraction", "huge vocabulary", "no vocabulary", "vision is a list", "huge buffers",
)  # fmt: skip
_OFTEN_CONFIGS = ("deep", "model type is a list", "many layers", "size is a string", "huge size", "huge buffers")


def _config_cases() -> Iterator[Hostile]:
    scan = ("scan", "./model", "--no-cache", "--no-cure", "-q", "--build-timeout", "10", "--build-memory", "1500")
    for name, content in CONFIGS.items():
        # transformers forgives some, and sizes alone take no memory
        codes = frozenset({0, 1, 2, 3}) if name in FORGIVEN else frozenset({2, 3})
        yield Hostile(
            name=f"config: {name}", arguments=scan, prepare=_writes({"model/config.json": content}), codes=codes,
            often=name in _OFTEN_CONFIGS,
        )  # fmt: skip
    special: Mapping[str, Callable[[Path], object]] = {
        "a folder": lambda file: file.mkdir(),
        "a pipe": lambda file: os.mkfifo(file),
        "/dev/zero": lambda file: file.symlink_to("/dev/zero"),
        "a dangling link": lambda file: file.symlink_to("nowhere"),
        "a link to itself": lambda file: file.symlink_to(file),
        "too large": lambda file: os.truncate(_touch(file), 1 << 40),
    }
    for name, make in special.items():
        yield Hostile(
            name=f"config is {name}",
            arguments=scan,
            prepare=lambda folder, make=make: make(_in_folder(folder)),  # type: ignore[misc]
            codes=frozenset({2, 3}),
            often=name in ("a pipe", "/dev/zero"),
        )
    yield Hostile(
        name="config: many random weights",
        arguments=(*scan, "--weights", "random"),
        prepare=_writes({"model/config.json": _changed(vocab_size=9 * 10**8)}),
        word="memory",
        often=True,
    )


def _in_folder(folder: Path) -> Path:
    (folder / "model").mkdir()
    return folder / "model" / "config.json"


def _save(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config: Any = LlamaConfig.from_dict(dict(SMALL))
    LlamaForCausalLM(config).save_pretrained(folder / "model")


def _weights(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        _save(folder)
        change(folder / "model" / "model.safetensors")

    return prepare


def _rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def _replace(file: Path, content: bytes) -> None:
    file.unlink()
    file.write_bytes(content)


def _make_odd(tensors: dict[str, Any]) -> None:
    import torch

    tensors["model.norm.weight"] = torch.ones(3)


def _dangle(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def _move_weights(folder: Path) -> None:
    _save(folder)
    (folder / "weights").mkdir()
    (folder / "model" / "model.safetensors").rename(folder / "weights" / "model.safetensors")


def _all(*steps: Callable[[], object]) -> None:
    for step in steps:
        step()


def _index(file: Path, content: object) -> None:
    file.rename(file.with_name("model-00001-of-00002.safetensors"))
    (file.parent / "model.safetensors.index.json").write_text(json.dumps(content))


CHECKPOINTS: Mapping[str, Callable[[Path], object]] = {
    "a dangling link": _dangle,
    "no config beside the weights": lambda file: (file.parent / "config.json").unlink(),
    "a missing tensor": lambda file: _rewrite(file, lambda tensors: tensors.pop("model.norm.weight")),
    "another shape": lambda file: _rewrite(file, _make_odd),
    "truncated": lambda file: os.truncate(file, 300),
    "truncated in the data": lambda file: os.truncate(file, file.stat().st_size - 10),
    "empty": lambda file: os.truncate(file, 0),
    "garbage": lambda file: _replace(file, bytes(range(256)) * 10),
    "a long header": lambda file: _replace(file, (1 << 62).to_bytes(8, "little") + b"{}"),
    "a header that is no JSON": lambda file: _replace(file, (4).to_bytes(8, "little") + b"nope"),
    "a folder": lambda file: _all(file.unlink, file.mkdir),
    "a pipe": lambda file: _all(file.unlink, lambda: os.mkfifo(file)),
    "an index that names a missing shard": lambda file: (
        file.rename(file.with_name("model-00001-of-00002.safetensors")),
        (file.parent / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}})
        ),
    ),
    "an index whose map is a list": lambda file: _index(file, {"metadata": {}, "weight_map": ["a", 7]}),
    "an index without a map": lambda file: _index(file, {"metadata": 7}),
    "an index that leads out of the folder": lambda file: _index(
        file, {"metadata": {}, "weight_map": {"model.norm.weight": "../../../../../../../../etc/passwd"}}
    ),
    "an index that is no JSON": lambda file: (
        file.rename(file.with_name("model-00001-of-00002.safetensors")),
        (file.parent / "model.safetensors.index.json").write_text("{"),
    ),
}


def _checkpoint_cases() -> Iterator[Hostile]:
    for name, change in CHECKPOINTS.items():
        yield Hostile(
            name=f"checkpoint: {name}",
            arguments=("scan", "./model", "--weights", "./model", "--no-cache", "--no-cure", "-q"),
            prepare=_weights(change),
            codes=frozenset({2, 3}),
            often=name in ("a dangling link", "truncated", "an index that names a missing shard", "a pipe"),
        )
    yield Hostile(
        name="checkpoint: elsewhere, without a config",
        arguments=("scan", "./model", "--weights", "./weights", "--no-cache", "--no-cure", "-q"),
        prepare=_move_weights,
        codes=frozenset({0, 1, 2, 3}),
    )


# --- files with shims

SHIMS: Mapping[str, tuple[str, str]] = {
    "loops": ("while True: pass", "longer than"),
    "sleeps": ("import time; time.sleep(1000)", "longer than"),
    "exits": ("import sys; sys.exit(0)", "SystemExit"),
    "ends the process": ("import os; os._exit(0)", "exit code 0"),
    "segfaults": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "raises": ("raise ValueError('x')", "ValueError"),
    "raises KeyboardInterrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "str raises": ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
    "is no Python": ("def (", "SyntaxError"),
    "has no shims": ("x = 1", "no shims"),
    "has other things": ("SHIMS = (1, 2)", "int"),
    "has too many": ("SHIMS = 7", ""),
    "prints": ("print('\\x1b[2J' * 1000)", "no shims"),
    "closes": ("import os; os.closerange(0, 100)", ""),
    "null bytes": ("\0", ""),
}


def _shim_cases() -> Iterator[Hostile]:
    good = f"{HEAD}def build():\n    return torch.nn.Linear(2, 2), (torch.ones(3, 2),)\n"
    scan = (*SCAN, "--shims", "shims.py")
    for name, (text, word) in SHIMS.items():
        yield Hostile(
            name=f"shims: {name}", arguments=scan, prepare=_writes({"target.py": good, "shims.py": text}),
            codes=frozenset({2}), word=word, often=name in ("loops", "exits", "ends the process"),
        )  # fmt: skip
    for name, make in {
        "a pipe": lambda folder: os.mkfifo(folder / "shims.py"),
        "a folder": lambda folder: (folder / "shims.py").mkdir(),
        "/dev/zero": lambda folder: (folder / "shims.py").symlink_to("/dev/zero"),
    }.items():
        yield Hostile(
            name=f"shims is {name}",
            arguments=scan,
            prepare=lambda folder, make=make: (_writes({"target.py": good})(folder), make(folder))[0],  # type: ignore[misc]
            codes=frozenset({2}),
            often=True,
        )


# --- folders for the run, and damaged runs

GOOD = f"{HEAD}def build():\n    return torch.nn.Linear(2, 2), (torch.ones(3, 2),)\n"


def _place_cases() -> Iterator[Hostile]:
    scan = ("scan", "target.py:build", "--no-cache", "-q", "--out")
    for name, (out, make) in {
        "no name": ("", lambda folder: None),
        "a long name": ("x" * 5000, lambda folder: None),
        "a long path": ("/".join(["x" * 200] * 30), lambda folder: None),
        "a file": ("out", lambda folder: (folder / "out").touch()),
        "inside a file": ("out/run", lambda folder: (folder / "out").touch()),
        "a pipe": ("out", lambda folder: os.mkfifo(folder / "out")),
        "a dangling link": ("out", lambda folder: (folder / "out").symlink_to("/nowhere/at/all")),
        "a link to itself": ("out", lambda folder: (folder / "out").symlink_to("out")),
        "in /proc": ("/proc/out", lambda folder: None),
        "events.jsonl is a folder": ("out", lambda folder: (folder / "out" / "events.jsonl").mkdir(parents=True)),
        "events.jsonl is a pipe": (
            "out",
            lambda folder: _all((folder / "out").mkdir, lambda: os.mkfifo(folder / "out/events.jsonl")),
        ),
        "logs is a file": ("out", lambda folder: ((folder / "out").mkdir(), (folder / "out/logs").touch())),
        ".lock is a folder": ("out", lambda folder: (folder / "out" / ".lock").mkdir(parents=True)),
        ".lock is a pipe": (
            "out",
            lambda folder: _all((folder / "out").mkdir, lambda: os.mkfifo(folder / "out/.lock")),
        ),
        ".request is a folder": ("out", lambda folder: (folder / "out" / ".request").mkdir(parents=True)),
        "report.json is a folder": ("out", lambda folder: (folder / "out" / "report.json").mkdir(parents=True)),
    }.items():
        yield Hostile(
            name=f"out: {name}",
            arguments=(*scan, out),
            prepare=lambda folder, make=make: (_writes({"target.py": GOOD})(folder), make(folder))[0],  # type: ignore[misc]
            codes=frozenset({0, 2}) if name == ".lock is a pipe" else frozenset({2}),
            often=True,
        )


_STARTED = (
    b'{"event":"run_started","at":1.0,"run":"r","target":{"ref":"x"},"options":{},"version":"0",'
    b'"schema":"exportdoctor.events/1"}\n'
)
JOURNALS: Mapping[str, tuple[bytes, frozenset[int]]] = {
    "empty": (b"", frozenset({2})),
    "garbage": (bytes(range(256)) * 4, frozenset({2})),
    "no first event": (b'{"event":"noted","text":"x"}\n', frozenset({2})),
    "another schema": (_STARTED.replace(b"events/1", b"events/9"), frozenset({2})),
    "schema is a number": (_STARTED.replace(b'"exportdoctor.events/1"', b"7"), frozenset({2})),
    "schema with escapes": (_STARTED.replace(b"events/1", b"\\u001b[2J\\u009b\\u202e"), frozenset({2})),
    "wrong types": (_STARTED.replace(b'"options":{}', b'"options":[]'), frozenset({2})),
    "damaged in the middle": (_STARTED + b'{"event":"noted"\n' + b'{"event":"noted","text":"x"}\n', frozenset({2})),
    "wrong types later": (_STARTED + b'{"event":"noted","text":7}\n{"event":"noted","text":"x"}\n', frozenset({2})),
    "truncated": (_STARTED + b'{"event":"noted","te', frozenset({0})),
    "an unknown event": (_STARTED + b'{"event":"unheard","x":1}\n', frozenset({0})),
    "escapes in a note": (_STARTED + b'{"event":"noted","text":"\\u001b[2J\\u009b\\u202e<script>\\u2028"}\n', frozenset({0})),
    "a surrogate": (_STARTED + b'{"event":"noted","text":"\\ud800"}\n', frozenset({0, 2})),
    "deep": (_STARTED + b"[" * 200_000 + b"\n" + b'{"event":"noted","text":"x"}\n', frozenset({2})),
    "one long line": (_STARTED[:-1] + b" " * 50_000_000 + b"\n", frozenset({0})),
    "zeros": (_STARTED + b"\0" * 1000, frozenset({0})),
    "an end of infinite length": (_STARTED + b'{"event":"run_finished","exit_code":0,"seconds":1e308}\n', frozenset({0})),
    "an absurd time": (_STARTED.replace(b'"at":1.0', b'"at":1e300'), frozenset({0})),
    "an absurd exit code": (_STARTED + b'{"event":"run_finished","exit_code":99999999999,"seconds":-1}\n', frozenset({0})),
    "a probe of a part that was never captured": (
        _STARTED + b'{"event":"part_finished","part":"p","verdict":"passes","exporter":"export","seconds":0,"asked":0}\n',
        frozenset({0}),
    ),
}  # fmt: skip
READERS = (("report", "./run"), ("report", "./run", "--format", "md"), ("runs",))


def _run_cases() -> Iterator[Hostile]:
    for name, (content, codes) in JOURNALS.items():
        for words in (*READERS, ("scan", "--resume", "./run"), ("compare", "./run", "./run"), ("repro", "./run")):
            anything = words[0] in ("runs", "scan", "compare", "repro")
            yield Hostile(
                name=f"run: {name}: {' '.join(words)}",
                arguments=words,
                prepare=_writes({"run/events.jsonl": content}),
                codes=frozenset({0, 1, 2}) if anything else codes,
                often=words == READERS[0],
            )


def cases() -> tuple[Hostile, ...]:
    """All of them."""
    return (
        *_code_cases(), *_verb_cases(), *_answer_cases(), *_file_cases(), *_config_cases(), *_checkpoint_cases(), *_shim_cases(),
        *_place_cases(), *_run_cases(),
    )  # fmt: skip
