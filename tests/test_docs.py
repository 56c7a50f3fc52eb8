"""The documents beside the code: what they list is what there is."""

import argparse
import re
from pathlib import Path
from typing import Final

import attrs
import pytest

from layered_llm.client.bench import add_bench_arguments
from layered_llm.service.chat.flags import add_chat_arguments
from layered_llm.service.settings import command_flags
from layered_llm.service.settings.settings import Settings, add_arguments
from layered_llm.service.settings.settings_sources import CONFIG_VARIABLE, variable
from layered_llm.transport.http.endpoints import all_endpoints
from layered_llm.transport.http.openai.schema.endpoint_fields import CHAT, COMPLETIONS
from support.markdown import REPOSITORY, is_shown
from support.settings_page import WIDTH, page

DOCS: Final = sorted((REPOSITORY / "docs").glob("*.md"))
NEWCOMERS: Final = (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *DOCS)
METRICS_PAGE = REPOSITORY / "tests" / "golden" / "metrics.txt"
EVERY: Final = (*NEWCOMERS, REPOSITORY / "architecture.md")
OF_OTHER_PROGRAMS: Final = {"--constraint", "--no-deps", "--bind", "--init", "--help"}
"""pip's, hypercorn's and docker's, and what every program has."""
API: Final = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_page_of_settings_is_made_from_the_table_of_settings() -> None:
    """`make docs` writes it."""
    assert page() == (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")


def test_the_api_page_names_every_endpoint() -> None:
    paths = {endpoint.path.partition("/<")[0] for endpoint in all_endpoints()}

    assert [] == sorted(path for path in paths if path not in API)


def test_the_api_page_names_every_field_of_openais_endpoints() -> None:
    fields = {*CHAT, *COMPLETIONS}

    assert [] == sorted(name for name in fields if f"`{name}`" not in API)


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        if name.startswith("http"):
            continue
        file = path.parent / name if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)

    assert [] == broken


def anchors(path: Path) -> set[str]:
    """Of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", NEWCOMERS, ids=lambda path: path.name)
def test_lines_that_are_no_rows_of_tables_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()

    assert [] == [line for line in lines if len(line) > WIDTH and not line.startswith("|")]


def test_the_readme_links_to_every_document() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")

    assert [] == [path.name for path in DOCS if f"(docs/{path.name})" not in readme]


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_flags_and_variables_in_the_documents_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)) - OF_OTHER_PROGRAMS
    variables = set(re.findall(r"LAYERED_LLM_[A-Z_]*[A-Z]", text))

    assert set() == flags - all_flags()
    assert set() == variables - all_variables()


def all_flags() -> set[str]:
    serve, chat, bench = argparse.ArgumentParser(), argparse.ArgumentParser(), argparse.ArgumentParser()
    add_arguments(serve)
    add_chat_arguments(chat, "")
    add_bench_arguments(bench)
    return {"--shell", "--version"}.union(*(parser._option_string_actions for parser in (serve, chat, bench)))


def all_variables() -> set[str]:
    return {variable(field.name) for field in attrs.fields(Settings)} | {CONFIG_VARIABLE, *command_flags.variables()}


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_figures_in_the_documents_exist(path: Path) -> None:
    known = set(re.findall(r"^# HELP layered_llm_(\w+)", METRICS_PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"`layered_llm_(\w+)`", path.read_text(encoding="utf-8"))

    assert [] == [name for name in named if name not in known]


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_modules_in_the_documents_exist(path: Path) -> None:
    named = re.findall(r"`([\w/]+\.py)`", path.read_text(encoding="utf-8"))
    there = [
        str(file.relative_to(REPOSITORY)) for top in ("src", "tests", "benchmarks") for file in (REPOSITORY / top).rglob("*.py")
    ]

    assert [] == [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in there)]


@pytest.mark.parametrize(
    ("printed", "shown", "expected"),
    [
        ("a \n", "a\n", True),
        ("a\nb\n", "a\n", False),
        ("a b c", "a … c", True),
        ("a b d", "a … c", False),
        ("a.c", "a…c", True),
        ("abc", "a.c", False),
    ],
)
def test_what_a_block_printed_is_compared_whole_but_for_ellipses(printed: str, shown: str, expected: bool) -> None:
    assert expected == is_shown(printed, shown)
