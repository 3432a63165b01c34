"""A target built once for several scans: each says what it says where it builds the target itself."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from exportdoctor.sweep.warm_process import WarmProcess, WarmScan
from tiny_configs import FAMILIES

pytestmark = pytest.mark.slow
_OWN = {"run", "at", "seconds", "memory", "peak_rss_mb", "log", "command", "statistics", "version"}
_FACTORY = Path(__file__).parents[1] / "support" / "sweep_factories.py"


_ASKED = {"static": ("--static",), "dynamic": (), "strict": ("--exporter", "export-strict")}


@pytest.mark.long
@pytest.mark.parametrize("names", [("static",), pytest.param(("dynamic", "strict"), marks=pytest.mark.night)])
def test_scans_of_a_held_target_say_what_they_say_alone(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    target, refused = tmp_path / "llama", tmp_path / "refused"
    for folder, changes in ((target, {}), (refused, {"num_attention_heads": 3})):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**FAMILIES["llama"], **changes}))
    warm = WarmProcess()

    def scan(name: str, *words: str, ref: Path = target) -> WarmScan:
        started = ("scan", str(ref), "--no-cure", "--no-cache", "--quiet", "--out", str(tmp_path / name), *words)
        return warm.start(started, tmp_path / f"{name}.stderr", os.environ)

    try:
        asked = {name: _ASKED[name] for name in names}
        codes = {name: scan(f"{name}-alone", *words).wait(120) for name, words in asked.items()}
        holder = warm.hold(str(target), (), os.environ, mark="exportdoctor-test")
        assert holder.wait(120) == 0
        for name, words in asked.items():
            held = scan(name, *words)
            assert psutil.Process(held.pid).ppid() == holder.pid
            assert held.wait(120) == codes[name]
            assert _said(tmp_path / name) == _said(tmp_path / f"{name}-alone")
        os.kill(holder.pid, signal.SIGKILL)  # what holds the target is lost, and no scan with it
        assert scan("after", *asked[names[0]]).wait(120) == codes[names[0]]
        warm.let_go()
        assert warm.hold(f"{_FACTORY}:passes", (), os.environ, mark="exportdoctor-test").wait(120) != 0
        alone = scan("refused-alone", ref=refused).wait(120)
        assert warm.hold(str(refused), (), os.environ, mark="exportdoctor-test").wait(120) == 0
        assert scan("refused", ref=refused).wait(120) == alone == 3
        assert (tmp_path / "refused.stderr").read_text() == (tmp_path / "refused-alone.stderr").read_text()
        warm.let_go()
    finally:
        warm.close()


def _said(folder: Path) -> Any:
    """The report without what differs between two runs of one scan."""
    return _without(json.loads((folder / "report.json").read_text()))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(one) for key, one in value.items() if key not in _OWN}
    return [_without(one) for one in value] if isinstance(value, list) else value
