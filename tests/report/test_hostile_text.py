"""No text of a target, a message or a run's folder controls a terminal or becomes markup, wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from exportdoctor.cli.error_output import print_line
from exportdoctor.core.codec import decode, encode, pretty
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.report import render
from exportdoctor.report.canvas import Style
from exportdoctor.report.wording import plain
from synthetic import qwen_scan

FOLDED = ("Exception and stack", "Why, and how to rewrite it")
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
CONTROLS = "\x1b[31m\x1b]0;t\x07\x00\x9b2J\r\u061c\u2028\u202e\u2066\u200f\ud800\ufeff"
MARKUP = "<script>alert(1)</script> <img src=x> ]]> --> & \" ' [x](javascript:1) `a` ``` | # * \n\n# b"
HOSTILE = st.one_of(
    st.text(max_size=30), st.text(alphabet=CONTROLS + "<>&`|[]()\n x", max_size=30),
    st.sampled_from((CONTROLS, MARKUP, "x" * 5000)),
)  # fmt: skip
IN_REPORTS = HOSTILE.map(lambda text: text.replace("\ud800", "\ufffd"))  # records hold valid UTF-8
BUILTINS = msgspec.to_builtins(fold(tuple(qwen_scan())).report())


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all strings in nested lists and dicts."""
    if isinstance(value, str):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [place for key, item in items for place in _places(item, (*path, key))]


def _put(value: Any, path: tuple[Any, ...], text: str) -> Any:
    if not path:
        return text
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: _put(value[key], tuple(rest), text)}
    return [_put(item, tuple(rest), text) if index == key else item for index, item in enumerate(value)]


def _free_places() -> list[tuple[Any, ...]]:
    """Those that take any text: the others are one of a few words, which reading a report checks.

    One place of a list answers for all of it.
    """
    free: dict[tuple[Any, ...], bool] = {}

    def is_free(place: tuple[Any, ...]) -> bool:
        field = tuple("" if isinstance(key, int) else key for key in place)
        if field not in free:
            try:
                msgspec.convert(_put(BUILTINS, place, "any text"), Report)
                free[field] = True
            except msgspec.ValidationError:
                free[field] = False
        return free[field]

    return [place for place in _places(BUILTINS) if is_free(place)]


PLACES = _free_places()


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """A report of a real run with hostile text in a few of its fields."""
    content = BUILTINS
    for place in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=8, unique=True)):
        content = _put(content, place, draw(IN_REPORTS))
    return msgspec.convert(content, Report)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src") or name.startswith("on")]


def _tokens(markdown: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").parse(markdown):
        yield token
        yield from token.children or ()


def check_all_forms(report: Report) -> None:
    for form in ("text", "md", "html", "json", "junit", "sarif"):
        text = render(report, form, Style(width=80))
        assert not UNSAFE.search(text), (form, UNSAFE.search(text))
    assert not UNSAFE.search(render(report, "text", Style(width=80, colour=True)).replace("\x1b", ""))
    assert all(len(line) <= 80 for line in render(report, "text", Style(width=80)).splitlines())
    assert decode(render(report, "json"), Report) == report
    page, html = _Tags(), render(report, "html")
    page.feed(html)
    assert html.count("<script") == 1  # the page's own
    assert page.seen.isdisjoint({"iframe", "b"})
    assert all(address.startswith(("#", "https://", "data:image/")) for address in page.addresses), page.addresses
    ElementTree.fromstring(render(report, "junit"))
    raw = {token.content.strip() for token in _tokens(render(report, "md")) if token.type.startswith("html_")}
    assert raw <= {f"<details><summary>{title}</summary>" for title in FOLDED} | {"</details>"}


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(reports())
def test_no_field_of_a_report_controls_a_terminal_or_becomes_markup(report: Report) -> None:
    check_all_forms(report)


@pytest.mark.night
@settings(max_examples=5000, deadline=None)
@given(reports())
def test_no_field_of_a_report_controls_a_terminal_or_becomes_markup_in_many_draws(report: Report) -> None:
    check_all_forms(report)


@given(HOSTILE)
def test_plain_text_is_safe_stays_so_and_keeps_what_was(text: str) -> None:
    assert not UNSAFE.search(plain(text))
    assert plain(plain(text)) == plain(text)
    if not UNSAFE.search(text) and text.isascii():
        assert plain(text) == text


@pytest.mark.parametrize("text", [CONTROLS, MARKUP, "x" * 100_000, ""])
def test_a_line_on_stderr_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_line(text)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert len(lines[0]) <= 1000
    assert not UNSAFE.search(lines[0])


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\ud800\udcff"))))
def test_text_that_utf8_does_not_have_is_written_all_the_same(text: str) -> None:
    assert (
        decode(encode({"a": [text, (text,)]}), dict[str, Any])["a"][0]
        == text.encode(errors="backslashreplace").decode()
    )
    assert pretty(text)
