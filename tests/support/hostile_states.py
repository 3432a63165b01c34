"""More of what the code of a target may do, and of what a factory may return, as rows of hostile.py's tables."""

from __future__ import annotations

from collections.abc import Mapping

_ANY = frozenset({0, 1, 3})
_FINE = frozenset({0})

# code, right exit codes, word on stderr
STATES: Mapping[str, tuple[str, frozenset[int], str]] = {
    # it comes back later
    "exit at exit": ("import atexit; atexit.register(os._exit, 9)", _FINE, ""),
    "raise at exit": ("import atexit; atexit.register(boom)", _FINE, ""),
    "exit soon": ("threading.Timer(0.4, os._exit, (9,)).start()", _ANY, ""),
    "alarm": ("signal.alarm(1)", _ANY, ""),
    "interval timer": ("signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)", frozenset({0, 3}), ""),
    "handlers that raise": ("[signal.signal(n, boom) for n in (signal.SIGUSR1, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE)]", _FINE, ""),
    "busy threads": ("[threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start() for _ in range(3)]", _ANY, ""),
    "a destructor that raises": ("class D:\n        def __del__(self): raise Loud('gone')\n    D(); kept = [D()]; kept.append(kept)", _FINE, ""),
    "a destructor that exits": ("class D:\n        def __del__(self): os._exit(9)\n    D()", frozenset({3}), "exit code 9"),
    "a destructor that raises SystemExit": ("class D:\n        def __del__(self): sys.exit(9)\n    D()", _FINE, ""),
    "a callback of the collector": ("gc.callbacks.append(boom); gc.collect()", _FINE, ""),
    "an audit hook": ("sys.addaudithook(boom)", _ANY, ""),
    "an audit hook that exits": ("sys.addaudithook(lambda e, a: e == 'open' and os._exit(9))", _ANY, ""),
    "a profiler": ("sys.setprofile(boom)", _ANY, ""),
    "a finder that raises": ("class F:\n        find_spec = boom\n    sys.meta_path.insert(0, F())", _ANY, ""),
    "a finder that hangs": ("class F:\n        def find_spec(self, *a): time.sleep(0.01)\n    sys.meta_path.insert(0, F())", _FINE, ""),
    # it leaves torch in another state
    "default device meta": ("torch.set_default_device('meta')", _ANY, ""),
    "default dtype": ("torch.set_default_dtype(torch.float16)", _ANY, ""),
    "inference mode": ("torch.inference_mode().__enter__()", _ANY, ""),
    "fake tensor mode": ("from torch._subclasses import FakeTensorMode; FakeTensorMode().__enter__()", _ANY, ""),
    "a function mode that raises": ("from torch.overrides import TorchFunctionMode\n    class F(TorchFunctionMode):\n        def __torch_function__(self, *a, **k): raise Loud('mode')\n    F().__enter__()", frozenset({1, 3}), ""),
    "a dispatch mode that raises": ("from torch.utils._python_dispatch import TorchDispatchMode\n    class D(TorchDispatchMode):\n        def __torch_dispatch__(self, *a, **k): raise Loud('mode')\n    D().__enter__()", frozenset({1, 3}), ""),
    "global hooks that raise": ("torch.nn.modules.module.register_module_forward_pre_hook(boom)", frozenset({1, 3}), ""),
    "no cloning": ("torch.Tensor.clone = boom", _ANY, ""),
    "no deep copies": ("import copy; copy.deepcopy = boom", _ANY, ""),
    "no pytree": ("import torch.utils._pytree as p; p.tree_flatten = p.tree_map = p.tree_leaves = boom", _ANY, ""),
    "no graphs": ("import torch.fx; torch.fx.Graph.create_node = boom", frozenset({1, 3}), ""),
    "no tracebacks": ("import traceback; traceback.extract_tb = traceback.format_exception = traceback.print_exception = boom", _ANY, ""),
    "no sources": ("import inspect, linecache; inspect.getsource = inspect.signature = linecache.getline = boom", _ANY, ""),
    "no JSON": ("import json; json.loads = json.dumps = boom", _FINE, ""),
    "no hashes": ("import hashlib; hashlib.sha256 = boom", _ANY, ""),
    # it takes from the process
    "umask": ("os.umask(0o777)", _ANY, ""),
    "no files": ("signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", _ANY, ""),
    "no more processes": ("resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))", _ANY, ""),
    "no temporary folder": ("import tempfile; os.environ['TMPDIR'] = tempfile.tempdir = '/nowhere/at/all'", _FINE, ""),
    "noise on every descriptor": ("for d in range(3, 60):\n        try: os.set_blocking(d, False); os.write(d, b'noise\\xff\\n')\n        except OSError: pass", _ANY, ""),
    "MemoryError": ("raise MemoryError", frozenset({3}), "MemoryError"),
    "a nested exit": ("try: raise Loud('a')\n    except Loud: sys.exit(Mute())", frozenset({3}), "SystemExit"),
    "a message without end": ("class E(Exception):\n        def __str__(self):\n            while True: pass\n    raise E", frozenset({3}), "--build-timeout"),
    "a context that hangs": ("class E(Exception):\n        @property\n        def __context__(self): raise Loud('x')\n    raise E('odd')", frozenset({3}), "E"),
    "an exception that contains itself": ("e = Loud('x'); o = Loud('y'); e.__cause__ = o; o.__cause__ = e; raise e", frozenset({3}), "Loud"),
}  # fmt: skip

RETURNS: Mapping[str, tuple[str, frozenset[int]]] = {
    "inputs that contain themselves": ("x = [torch.ones(2)]; x.append(x)\n    return torch.nn.Identity(), (x,)", frozenset({1, 3})),
    "an output that contains itself": ("class M(torch.nn.Module):\n        def forward(self, x):\n            y = [x]; y.append(y); return y\n    return M(), (torch.ones(1),)", frozenset({1, 3})),
    "a deep output": ("class M(torch.nn.Module):\n        def forward(self, x):\n            for _ in range(5000): x = (x,)\n            return x\n    return M(), (torch.ones(1),)", frozenset({1, 3})),
    "an endless generator as output": ("class M(torch.nn.Module):\n        def forward(self, x): return iter(int, 1)\n    return M(), (torch.ones(1),)", frozenset({1, 3})),
    "an input that is no leaf": ("return torch.nn.Linear(2, 2), (torch.ones(3, 2, requires_grad=True) * 2,)", _ANY),
    "keywords that are no names": (r"return dict(module=torch.nn.Identity(), args=(), kwargs={'\x1b[31m\u202e': torch.ones(1), 7: 8})", frozenset({3})),
    "sparse inputs": ("return torch.nn.Identity(), (torch.eye(3).to_sparse(),)", _ANY),
    "nested inputs": ("return torch.nn.Identity(), (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),)", _ANY),
    "a subclass that refuses": ("class T(torch.Tensor):\n        __torch_function__ = classmethod(boom)\n    return torch.nn.Identity(), (torch.Tensor._make_subclass(T, torch.ones(2)),)", _ANY),
    "a deep module": ("m = torch.nn.Identity()\n    for _ in range(1500): m = torch.nn.Sequential(m)\n    return m, (torch.ones(1),)", _ANY),
    "names of 5,000 characters": ("class M(torch.nn.Module):\n        def __init__(self):\n            super().__init__(); self.add_module('x' * 5000, torch.nn.Linear(2, 2))\n        def forward(self, x): return self.get_submodule('x' * 5000)(x) if x.sum() > 0 else x\n    M.__name__ = M.__qualname__ = 'C' * 5000\n    return M(), (torch.ones(1, 2),)", frozenset({1})),
    "names with bidi that fail": (r"class M(torch.nn.Module):" "\n        def __init__(self):\n            super().__init__(); self.kids = torch.nn.ModuleDict({chr(0x202e) + chr(27) + '[31m<b>|`' + chr(10): K()})\n        def forward(self, x): return next(iter(self.kids.values()))(x)\n    return M(), (torch.ones(1, 2),)", frozenset({1})),
    "a forward that changes its module": ("class M(torch.nn.Module):\n        def __init__(self):\n            super().__init__(); self.one = torch.nn.Linear(2, 2)\n        def forward(self, x):\n            y = self.one(x); del self.one; self.n = torch.nn.Linear(2, 2); self.__class__ = torch.nn.Module; return y\n    return M(), (torch.ones(1, 2),)", _ANY),
    "a forward that takes its hooks": ("class M(torch.nn.Module):\n        def forward(self, x):\n            self._forward_hooks.clear(); self._forward_pre_hooks.clear(); return x + 1\n    return M(), (torch.ones(1),)", _ANY),
    "a module without truth": ("class M(torch.nn.Module):\n        __bool__ = __len__ = __eq__ = __repr__ = boom; __hash__ = torch.nn.Module.__hash__\n        def forward(self, x): return x + 1\n    return M(), (torch.ones(1),)", _ANY),
    "a module that cannot be hashed": ("class M(torch.nn.Module):\n        __hash__ = boom\n        def forward(self, x): return x + 1\n    return M(), (torch.ones(1),)", _ANY),
    "a module that takes no attributes": ("class M(torch.nn.Module):\n        def forward(self, x): return x + 1\n    m = M(); M.__setattr__ = M.__delattr__ = boom\n    return m, (torch.ones(1),)", _ANY),
    "a forward that is no function": ("m = torch.nn.Linear(2, 2); m.forward = 7\n    return m, (torch.ones(1, 2),)", frozenset({3})),
    "buffers that raise": ("class M(torch.nn.Module):\n        buffers = named_buffers = state_dict = boom\n        def forward(self, x): return x + 1\n    return M(), (torch.ones(1),)", _ANY),
}  # fmt: skip
KIDS = "class K(torch.nn.Module):\n    def forward(self, x): return x + 1 if x.sum() > 0 else x\n"
OFTEN = (
    ("factory", "a destructor that exits"),
    ("factory", "noise on every descriptor"),
    ("forward", "a dispatch mode that raises"),
)
