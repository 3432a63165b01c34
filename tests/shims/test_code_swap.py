"""Which functions of a user a shim looks at: those that the modules call, wherever their names come from."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from exportdoctor.shims import ExportCall
from exportdoctor.shims.rules.code.code_swap import user_functions

FORMS = {
    "at the top": "import {package}.sizes as lib\ndef build():\n    return Inner()\n\n",
    "a name at the top": "from {package}.sizes import centre\ndef build():\n    return Inner()\n\n",
    "in the factory": "def build():\n    import {package}.sizes as lib\n",
    "in the factory by its whole name": "def build():\n    import {package}.sizes\n",
    "from the package in the factory": "def build():\n    from {package} import sizes as lib\n",
    "in forward": "from {package}.sizes import centre",
    "in forward, as a module": "import {package}.sizes as lib",
    "in forward, from the package": "from {package} import sizes as lib",
    "in forward, beside it": "from .sizes import centre",
    "in forward, from where it is": "from . import sizes as lib",
    "in forward, from above": "from ..{package}.sizes import centre",
}
INNER = """class Inner(torch.nn.Module):
    def forward(self, x):
        {imports}
        return x - {call}(x)
"""


@pytest.mark.parametrize("form", FORMS)
def test_functions_are_found_where_they_are_imported_from(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import in a factory or in forward, against a cycle, hid them: shims did not apply to what they do apply to."""
    name = f"late_{sorted(FORMS).index(form)}"
    package = tmp_path / "outer" / name
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "sizes.py").write_text("def centre(x):\n    return float(x.shape[0])\n")
    imports = FORMS[form].format(package=name if "above" in form else f"outer.{name}")
    names_function = "import centre" in imports
    call = "centre" if names_function else "lib.centre" if " as lib" in imports else f"outer.{name}.sizes.centre"
    if "forward" in form:
        text = f"import torch\n{INNER.format(imports=imports, call=call)}\ndef build():\n    return Inner()\n"
    else:
        inner = INNER.format(imports="pass", call=call)
        inside = "".join(f"    {line}\n" for line in inner.splitlines()) + "    return Inner()\n"
        text = f"import torch\n{imports}{inside if 'factory' in form else inner}"
    (package / "net.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for one in ("outer", f"outer.{name}", f"outer.{name}.sizes", f"outer.{name}.net"):
        monkeypatch.delitem(sys.modules, one, raising=False)
    module = importlib.import_module(f"outer.{name}.net").build()
    module(torch.ones(2))
    found = user_functions(ExportCall(module=module, args=(torch.ones(2),)), lambda code: "float" in code.co_names)
    assert {one.__name__ for one in found} == {"centre"}
