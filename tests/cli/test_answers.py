"""JSON answers fit the schemas that are printed; the tools of `exportdoctor mcp` write into one folder only."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from exportdoctor.cli.answers import ANSWERS, schema_of
from exportdoctor.cli.main import run
from exportdoctor.core.run import events as ev
from exportdoctor.store.run_folder import RunFolder
from exportdoctor.store.runs import register
from synthetic import cured_part, qwen_scan

QWEN = "20231114-221320-qwen2.5-vl-3b-x7"
GATE = """import torch

class Gate(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x

def build():
    return Gate(), (torch.ones(3, 2),)
"""


def store_run(home: Path) -> Path:
    """A cured run with two findings among the runs of `home`."""
    with RunFolder.create(home / "runs" / QWEN) as folder:
        for event in qwen_scan():
            folder.append(cured_part() if isinstance(event, ev.PartFinished) else event)
        return folder.path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report", ["report", "--format", "json"]),
        ("brief", ["report", "--format", "brief"]),
        ("explain", ["explain", "F1", "--no-try", "--format", "json"]),
        ("explain-kind", ["explain", "vmap", "--format", "json"]),
        ("runs", ["runs", "--json"]),
        ("parts", ["parts", "Qwen2.5-VL-3B", "--json"]),
        ("compare", ["compare", QWEN, QWEN, "--json"]),
        ("known", ["known", "cache", "--json"]),
        ("lanes", ["lanes", "list", "--json"]),
    ],
)
def test_an_answer_fits_its_schema(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path))
    store_run(tmp_path)
    assert run(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert run(["schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(answer, schema)


@pytest.mark.slow
def test_every_answer_has_a_schema_and_a_wrong_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ANSWERS:
        jsonschema.Draft202012Validator.check_schema(schema_of(name))
    assert run(["schema", "reprot"]) == 2
    assert "Did you mean 'report'" in capsys.readouterr().err
    assert run(["schema", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ANSWERS)


def test_a_brief_report_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path))
    store_run(tmp_path)
    assert run(["report", "--format", "brief"]) == 0
    text = capsys.readouterr().out
    assert len(text) < 4000
    answer = json.loads(text)
    commands = [f"exportdoctor explain {answer['run']} F1", f"exportdoctor repro {answer['run']} F1"]
    assert answer["next"][:2] == commands, "of this run, whichever is the newest"


def test_without_the_package_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert run(["mcp", "--folder", str(tmp_path)]) == 2
    assert "pip install 'exportdoctor[mcp]'" in capsys.readouterr().err


@asynccontextmanager
async def served(folder: Path, *, cwd: Path) -> AsyncIterator[Client]:
    """A client of the server, which is a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = ["-m", "exportdoctor", "mcp", "--folder", str(folder)]
    parameters = StdioServerParameters(command=sys.executable, args=words, env=environment, cwd=str(cwd))
    async with Client(stdio_client(parameters)) as client:
        yield client


async def ask(client: Client, tool: str, **given: Any) -> tuple[Any, str]:
    """A tool's answer as data, and the text of its error; one of them is empty."""
    result = await client.call_tool(tool, given)
    text = "".join(getattr(block, "text", "") for block in result.content)
    return (None, text) if result.is_error else (result.structured_content, "")


def outside(tmp_path: Path) -> set[Path]:
    """Every file that is not inside the named folder."""
    return {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "named")}


@pytest.mark.long
@pytest.mark.slow
async def test_tools_answer_from_a_stored_run_and_write_nowhere_else(tmp_path: Path) -> None:
    named, other = tmp_path / "named", tmp_path / "other"
    for folder in (named, other):
        folder.mkdir()
    store_run(named / ".exportdoctor")
    (named / "exit").symlink_to(other)
    (named / "dangling.pt2").symlink_to(other / "new.pt2")
    (tmp_path / "model.py").write_text(GATE)
    before = outside(tmp_path)
    async with served(named, cwd=tmp_path) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"scan", "finding", "explain", "repro", "cure", "export"}
        found, _ = await ask(client, "finding", name="f1")
        assert found["title"].startswith("F1 ")
        assert any("Next: " in line for line in found["story"])
        cured, _ = await ask(client, "cure")
        assert cured["full"]["shims"]
        commands = [each for each in cured["full"]["sentences"] if "exportdoctor export" in each]
        home = f"EXPORTDOCTOR_HOME={named / '.exportdoctor'} exportdoctor export "
        assert commands
        assert all(home in each for each in commands)
        explained, _ = await ask(client, "explain", name="vmap")
        assert "```diff" in explained["result"]
        for output in (
            "../a.pt2",
            str(other / "a.pt2"),
            "exit/a.pt2",
            "dangling.pt2",
            "",
            ".",
            "a/../../b.pt2",
            "exit",
        ):
            _, error = await ask(client, "export", target="model.py:build", output=output)
            assert "only folder" in error or "missing" in error, output
            _, error = await ask(client, "repro", name="F1", bundle=output or "..")
            assert "only folder" in error, output
        for tool, given in {
            "finding": {"name": "F9"},
            "explain": {"name": "--output=/x"},
            "scan": {"target": "--out=/x\0"},
            "export": {"target": "model.py:build", "output": "a.pt2", "shims": "evil.py"},
            "cure": {"run": str(other)},
        }.items():
            answer, error = await ask(client, tool, **given)
            assert answer is None, tool
            assert error.count("\n") == 0, error
        for tool, given in {"explain": {"name": "vmap", "finding": "F1"}, "scan": {"target": "t", "part": "x"}}.items():
            answer, error = await ask(client, tool, **given)
            unknown = next(name for name in given if name not in ("name", "target"))
            assert answer is None, tool
            assert f"{tool} has no argument {unknown}. It has: " in error
        wrong: list[tuple[dict[str, Any], str]] = [
            ({}, "scan: target: field required"),
            ({"target": "t", "to": "tflite"}, "scan: to: input should"),
            ({"target": 5}, "and 5 was given"),
        ]
        for given, said in wrong:
            answer, error = await ask(client, "scan", **given)
            assert answer is None
            assert said in error
            assert "\n" not in error
        answer, error = await ask(client, "scan", target=f"--out={other}/x", weights=f"--out={other}/y")
        assert answer is None
        assert "x" in error
    assert outside(tmp_path) == before


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            lambda made: [one for one in made if not isinstance(one, ev.PartFinished | ev.RunFinished)],
            "cut off. Continue with",
        ),
        (lambda made: [without_search(one) for one in made], "the scan ran with --no-cure"),
    ],
)
async def test_a_run_without_a_cure_says_why(events: Any, said: str, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "named" / ".exportdoctor" / "runs" / QWEN) as folder:
        for event in events([*qwen_scan()]):
            folder.append(event)
    async with served(tmp_path / "named", cwd=tmp_path) as client:
        cured, _ = await ask(client, "cure")
        assert cured["full"]["run"] == QWEN
        assert said in cured["full"]["sentences"][0]
        found, _ = await ask(client, "finding", name="F1")
        assert found["run"] == QWEN


def without_search(event: ev.AnyEvent) -> ev.AnyEvent:
    if not isinstance(event, ev.RunStarted):
        return event
    return msgspec.structs.replace(event, options=msgspec.structs.replace(event.options, cure=False))


@pytest.mark.slow
async def test_a_run_or_a_link_that_leads_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, home = tmp_path / "named", tmp_path / "home"
    named.mkdir()
    elsewhere = store_run(home)
    register(QWEN, elsewhere, named / ".exportdoctor" / "runs")
    async with served(named, cwd=tmp_path) as client:
        _, error = await ask(client, "finding", name="F1", run=QWEN)
        assert "is not inside" in error
        (named / "model.proof.json").symlink_to(tmp_path / "proof.json")
        _, error = await ask(client, "export", target="model.py:build", output="model.pt2")
        assert "is a link that leaves" in error
        _, error = await ask(client, "finding", name="F1", run=str(elsewhere))
        assert "is no run's id" in error
        _, error = await ask(client, "scan", target="x" * 300_000)
        assert "cannot be started" in error
        (named / ".exportdoctor" / "cache").symlink_to(home)
        _, error = await ask(client, "scan", target="Qwen2.5-VL-3B")
        assert "is a link that leaves" in error


@pytest.mark.night
async def test_scan_explain_repro_and_export_over_stdio(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.mkdir()
    (tmp_path / "model.py").write_text(GATE)
    before = outside(tmp_path)
    async with served(named, cwd=tmp_path) as client:
        scanned, error = await ask(client, "scan", target="model.py:build")
        assert error == ""
        assert [one["kind"] for one in scanned["findings"]] == ["data_dependent_guard"]
        jsonschema.validate(scanned, schema_of("brief"))
        home = f"EXPORTDOCTOR_HOME={shlex.quote(str(named / '.exportdoctor'))} exportdoctor "
        assert all(command.startswith(home) for command in scanned["next"]), "pasted, it is of this folder's run"
        explained, _ = await ask(client, "explain", name="F1")
        assert "computes the same on" in explained["result"]
        made, _ = await ask(client, "repro", name="F1", seconds=15, bundle="issue")
        assert made["verified"]
        assert "torch.export.export" in made["script"]
        exported, error = await ask(client, "export", target="model.py:build", output="out/model.pt2")
        assert error == ""
        assert exported["verified"]
    assert (named / "out" / "model.pt2").is_file()
    assert (named / "issue" / "issue.md").is_file()
    assert outside(tmp_path) == before
