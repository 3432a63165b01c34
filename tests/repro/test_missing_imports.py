"""A script imports the submodules that it names: the process that wrote it had loaded them already."""

from __future__ import annotations

import pytest

from exportdoctor.core.failure.identity import NameFreeSignature
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.repro.pipeline import _verify_with_imports, add_import

FAILS = NameFreeSignature(FailureKind.PYTHON_ERROR, ("ValueError",), "no")


def test_an_import_stands_behind_the_others() -> None:
    source = "import os\nimport xml\n\nprint(xml)\n"
    assert add_import(source, "xml.dom.pulldom") == "import os\nimport xml\nimport xml.dom.pulldom\n\nprint(xml)\n"
    assert add_import("print(1)\n", "xml.dom") == "import xml.dom\nprint(1)\n"


@pytest.mark.slow
def test_what_a_fresh_process_has_not_loaded_is_imported() -> None:
    source = "import xml\n\nif xml.dom.pulldom.START_ELEMENT:\n    raise ValueError('no')\n"
    made, sighting = _verify_with_imports(source, FAILS)
    assert sighting.verified
    assert made.startswith("import xml\nimport xml.dom\nimport xml.dom.pulldom\n")


@pytest.mark.slow
def test_a_script_that_no_import_helps_stays_as_it_is() -> None:
    source = "import xml\n\nxml.nothing()\n"
    made, sighting = _verify_with_imports(source, FAILS)
    assert made == source
    assert not sighting.verified
    assert sighting.exception == "AttributeError"
