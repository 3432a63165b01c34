"""The HTML report: what it takes from a run's folder, what it does not, and how it behaves in a real browser."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import msgspec
import pytest

from chromium import CHROMIUM, BrowserTab, open_browser, open_tab
from exportdoctor.cli.main import run as run_command
from exportdoctor.core.run import events as ev
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.report import render
from exportdoctor.report.page.html_page import shorten_paths
from exportdoctor.report.page.run_material import gather_material
from exportdoctor.report.source_lines import Sources
from exportdoctor.store.journal import NAME, read_events
from synthetic import ATTENTION, START, captured, cured_part, judged, opened, qwen_scan, started
from synthetic import WINDOWS as FINDING
from tui_recorded import HERE, REPOSITORY

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&`${alert(1)}\u202e\n"


def recorded_page(name: str, folder: Path, *, before: str = "") -> str:
    """The page of a recorded run, with sources of this repository only."""
    run = folder / name
    if not run.exists():
        shutil.copytree(HERE / name, run)
    events = read_events(run / NAME)
    earlier = fold(read_events(HERE / before / NAME)) if before else None
    material = gather_material(events, run, before=earlier, sources=Sources((REPOSITORY,), own_paths=False))
    return render(fold(events).report(), "html", material=material)


def test_a_page_opens_on_the_answer_and_holds_all_tabs(tmp_path: Path) -> None:
    page = recorded_page("qwen", tmp_path)
    answer = page.partition('<div class="columns">')[0]
    assert "get_vision_window_index" in answer
    assert "exportdoctor export Qwen2.5-VL-3B --part vision" in answer
    assert "Same failure as F1, in part full." in answer
    for tab in ("story", "explain", "stack", "inputs", "graph", "cure", "repro"):
        assert f'data-tab="{tab}"' in page
    assert "data:image/svg+xml;base64," in page
    assert "Attempts over time" in page
    assert "/site-packages/" not in page, "folders of the machine that scanned"


def test_what_changed_against_another_run_is_on_the_page(tmp_path: Path) -> None:
    events = tuple(qwen_scan())
    cured = tuple(cured_part() if isinstance(event, ev.PartFinished) else event for event in events)
    cured = tuple(
        judged("pass", *event.fqns) if isinstance(event, ev.ModuleJudged) and event.finding == "F2" else event
        for event in cured
    )
    material = gather_material(cured, tmp_path, before=fold(events))
    page = render(fold(cured).report(), "html", material=material)
    changed = page.partition('id="changes"')[2].partition("</section>")[0]
    assert "fails itself → passes: 28 modules" in changed
    assert "exports with" in changed or "cured by" in changed


def test_against_is_refused_for_other_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", "--against", "x"]) == 2
    assert "--against goes with --format html only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/someone/work/secret/models/net.py:12", "…/models/net.py:12"),
        ("in '/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py'", "in 'torch/nn/modules/module.py'"),
        ("https://github.com/a/b/issues/1", "https://github.com/a/b/issues/1"),
        ("a // b / c and x/y/z, /dev/null", "a // b / c and x/y/z, /dev/null"),
    ],
)
def test_local_paths_are_shortened(text: str, expected: str) -> None:
    assert shorten_paths(text) == expected


def test_a_run_does_not_choose_which_files_of_this_machine_are_shown(tmp_path: Path) -> None:
    """Its repro, its log and its frames name files that are none of its own."""
    secret = tmp_path / "private" / "key.py"
    secret.parent.mkdir()
    secret.write_text("SECRET = 1\n")
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "link.txt").symlink_to(secret)
    frame = msgspec.structs.replace(FINDING.stack[-1], file=str(secret), line=1, source="")
    finding = msgspec.structs.replace(FINDING, log="logs/link.txt", stack=(frame,))
    assert FINDING.repro is not None
    repro = msgspec.structs.replace(FINDING.repro, path=str(secret))
    events = (
        *tuple(qwen_scan())[:4],
        ev.FindingMade(at=START, finding=finding),
        ev.FindingMade(at=START, finding=msgspec.structs.replace(ATTENTION, repro=repro)),
    )
    page = render(fold(events).report(), "html", material=gather_material(events, run))
    assert "SECRET" not in page


def large_report(modules: int) -> Report:
    """As many modules, none like another, in a tree that is three deep."""
    names = {"": "Root"}
    for block in range(modules // 10):
        names[f"blocks_{block}"] = f"Block{block}"
        names |= {f"blocks_{block}.child_{index}": f"Kind{block}_{index}" for index in range(9)}
    failing = [name for name in names if name.endswith("_3")]
    events = (
        started(),
        opened(),
        captured(names),
        ev.FindingMade(at=START, finding=FINDING),
        judged("pass", *names),
        judged("fails_own", *failing, finding="F1"),
        judged("fails_child", ""),
    )
    return fold(events).report()


def test_a_run_of_2000_modules_stays_below_3_mb() -> None:
    assert len(render(large_report(2000), "html").encode()) < 3_000_000


# in a browser


async def open_page(tab: BrowserTab, file: Path, page: str, *, at: str = "") -> None:
    """Write and open a page, as it is on a screen of 1280 x 900."""
    file.write_text(page, encoding="utf-8")
    await tab.ask("Page.navigate", url=f"file://{file}{at}")
    for _ in range(200):
        if await tab.value("document.readyState === 'complete' && document.querySelector('#shown') !== null"):
            return
    raise AssertionError("the page does not load")


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
async def test_a_page_in_a_browser(tmp_path: Path) -> None:
    with open_browser(tmp_path / "profile") as browser:
        async with open_tab(browser) as tab:
            for domain in ("Runtime", "Log", "Network"):
                await tab.ask(f"{domain}.enable")
            await tab.ask("Emulation.setFocusEmulationEnabled", enabled=True)  # or there is no clipboard
            await tab.ask("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
            await look_at_the_recorded_run(tab, tmp_path)
            await look_at_hostile_names(tab, tmp_path)
            await look_at_many_modules(tab, tmp_path)
            await tab.value("1")
            faults = [event for event in tab.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
            assert faults == []
            asked = [event for event in tab.events if event["method"] == "Network.requestWillBeSent"]
            assert {event["params"]["request"]["url"].partition(":")[0] for event in asked} <= {"file", "data"}


async def look_at_the_recorded_run(tab: BrowserTab, folder: Path) -> None:
    """Fold, search, chips, tabs, copy, keys, deep links."""
    page = recorded_page("qwen", folder)
    await open_page(tab, folder / "qwen.html", page)
    counted = "Array.from(document.querySelectorAll('.chip strong')).reduce((sum, e) => sum + Number(e.textContent), 0)"
    said = await tab.value("document.querySelector('#shown').textContent")
    assert said == f"{await tab.value(counted)} submodules"
    shown = "Array.from(document.querySelectorAll('.tree .name')).filter(e => e.checkVisibility()).length"
    await tab.value("document.querySelector('#fold').click()")
    folded = await tab.value(shown)
    await tab.value("document.querySelector('.tree summary').click()")
    assert folded < await tab.value(shown)
    await tab.value("document.querySelector('#search').focus()")
    for key in "blocks.5.attn":
        await tab.press(key)
    assert (await tab.value("document.querySelector('#shown').textContent")).startswith(
        "12 of "
    )  # attn, qkv and proj in four parts
    assert await tab.value("document.querySelectorAll('.tree li[hidden]').length") > 0
    await tab.value(
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))"
    )
    await tab.value("document.querySelector('.chip.cured').click()")
    assert (await tab.value("document.querySelector('#shown').textContent")).startswith("116 of ")
    await tab.value("document.querySelector('.chip.cured').click()")

    visible = "Array.from(document.querySelectorAll('.finding:not([hidden]) .tab:not([hidden])')).map(e => e.id).join()"
    assert await tab.value(visible) == "tab:F1/story"
    await tab.value("document.querySelector('.finding:not([hidden]) [role=tab]:nth-child(3)').click()")
    assert await tab.value(f"new Promise(r => setTimeout(() => r({visible}), 50))") == "tab:F1/stack"
    await tab.press("n")
    assert await tab.value(f"new Promise(r => setTimeout(() => r({visible}), 50))") == "tab:F2/story"
    await open_page(tab, folder / "qwen.html", page + " ", at="?2#F2/repro")
    assert await tab.value(visible) == "tab:F2/repro"
    await tab.value("document.querySelector('.finding:not([hidden]) .tab:not([hidden]) .copy').click()")
    copied = await tab.value("new Promise(r => setTimeout(() => r(navigator.clipboard.readText()), 100))")
    assert "torch.export" in copied
    assert not copied.endswith("Copy")
    await tab.value("location.hash = 'vision:model.visual.blocks.9.mlp'")
    chosen = "new Promise(r => setTimeout(() => r(document.querySelector('#module').textContent), 50))"
    assert "model.visual.blocks.9.mlp" in await tab.value(chosen)
    await tab.ask("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    assert await tab.value("document.documentElement.scrollWidth") <= 400
    await tab.ask("Emulation.clearDeviceMetricsOverride")


async def look_at_hostile_names(tab: BrowserTab, folder: Path) -> None:
    """Names that are markup stay text, and can be chosen and searched."""
    finding = msgspec.structs.replace(
        FINDING, module=HOSTILE, module_class=HOSTILE, function=HOSTILE, file=HOSTILE, source=HOSTILE,
        expression=HOSTILE, exception=msgspec.structs.replace(FINDING.exception, type=HOSTILE, message=HOSTILE),
    )  # fmt: skip
    events = (
        started(ref=HOSTILE),
        opened(environment={"torch": HOSTILE}),
        captured({"": HOSTILE, HOSTILE: HOSTILE}, part=HOSTILE),
        ev.FindingMade(at=START, finding=finding),
        judged("fails_own", HOSTILE, part=HOSTILE, finding="F1"),
        ev.NoteAdded(text=HOSTILE),
    )
    page = render(fold(events).report(), "html", material=gather_material(events, folder))
    await open_page(tab, folder / "hostile.html", page)
    assert await tab.value("document.querySelectorAll('img[src=x]').length") == 0
    assert await tab.value("document.querySelectorAll('script').length") == 1
    await tab.value("document.querySelector('.tree .name').click()")
    assert "onerror" in await tab.value("document.querySelector('.finding h2').textContent")


async def look_at_many_modules(tab: BrowserTab, folder: Path) -> None:
    """2000 modules can be searched; it takes well under a second on an idle machine, and ten are allowed."""
    await open_page(tab, folder / "many.html", render(large_report(2000), "html"))
    ready = await tab.value("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    begun = time.monotonic()
    await tab.value(
        "(() => { const s = document.querySelector('#search'); s.value = 'blocks_77.child_4';"
        "s.dispatchEvent(new Event('input')); })()"
    )
    print(f"ready after {ready:.0f} ms, searched in {1000 * (time.monotonic() - begun):.0f} ms")
    assert (await tab.value("document.querySelector('#shown').textContent")).startswith("1 of ")
    assert ready < 10_000
