"""Every command line that the pages show is one that exportdoctor takes: its verb, options, values of options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from exportdoctor.cli.main import exportdoctor

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCES = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.M | re.S)
IN_LINE = re.compile(r"`(exportdoctor [a-z][^`\n]*)`")
COLUMNS = re.compile(r" {2,}(?!#)\S.*")
"""What the tables of next commands say beside one."""


def command_lines(page: Path) -> Iterator[str]:
    text = page.read_text()
    for block in FENCES.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if (command := re.sub(r"^ *(\$ )?", "", line)).startswith("exportdoctor ") and ": " not in command:
                yield command if "\\" in line else COLUMNS.sub("", command)
    yield from IN_LINE.findall(FENCES.sub("", text))


def parse(command: str) -> None:
    """Raises what click raises for the command line."""
    command = (
        re.sub(r"\[|\]|\(.*| > \S+", " ", command).replace(" X ", " 0.1 ").replace("--to ...", "--to int8")
    )  # optional ones are taken, too
    words = [word.split("|")[0] for word in shlex.split(command, comments=True)[1:]]
    with exportdoctor.make_context("exportdoctor", [words[0]]) as root:
        verb = exportdoctor.get_command(root, words[0])
        assert verb is not None, f"there is no verb {words[0]}"
        try:
            verb.make_context(words[0], words[1:], parent=root)
        except click.exceptions.Exit:  # --help
            pass
        except click.BadParameter as error:
            if "does not exist" not in error.message and "Missing argument" not in error.format_message():
                raise


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_commands_of_a_page_are_taken(page: Path) -> None:
    for command in command_lines(page):
        try:
            parse(command)
        except click.ClickException as error:
            pytest.fail(f"{command}: {error.format_message()}")


def test_the_pages_show_commands() -> None:
    verbs = {command.split()[1] for page in PAGES for command in command_lines(page)}
    assert {"scan", "explain", "repro", "export", "tui", "matrix", "bisect", "numbers", "domain"} <= verbs
