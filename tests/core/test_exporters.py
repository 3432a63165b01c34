"""The table of exporters: every name that the type allows has a row, and a function that exports with it."""

from __future__ import annotations

from typing import get_args

import pytest

from exportdoctor.core.exporters import EXPORTERS, Exporter


def test_every_exporter_has_its_row() -> None:
    assert tuple(EXPORTERS) == get_args(Exporter)


@pytest.mark.slow
def test_every_exporter_has_its_function() -> None:
    from exportdoctor.worker.attempt.export_attempt import _FUNCTIONS

    assert list(_FUNCTIONS) == list(EXPORTERS)
