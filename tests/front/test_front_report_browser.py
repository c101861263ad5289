"""The report in a real browser: it renders, loads nothing, runs nothing, and fits a phone and a dark room."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from front_report import hostile, measured
from front_state import large_state

from guidance_ttt.report.page import MAX_PAGE_BYTES, MAX_PAGE_NODES
from guidance_ttt.report.writing import write_report

pytestmark = pytest.mark.slow
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LARGE_PAGE_BYTES = 500_000
"""What a run of 30 updates of 8 x 16 may take; its page is to open at once."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports on an ordinary, a hostile and a large state."""
    out = tmp_path_factory.mktemp("out")
    states = {name: tmp_path_factory.mktemp(name) for name in ("ordinary", "hostile", "large")}
    measured(states["ordinary"])
    folders = {**states, "hostile": hostile(states["hostile"])}
    large_state(states["large"], program_chars=15_000)
    return {name: write_report(folder, out / f"{name} <b>&.html", environ={}).page for name, folder in folders.items()}


@pytest.fixture(scope="module")
def browser(pages: dict[str, Path]) -> Iterator[Any]:
    """Chromium; after `pages`, because Playwright occupies the thread's event loop and a search needs it."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium here; install it with: scripts/setup.sh --chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=FLAGS, headless=True)
        yield made
        made.close()


@dataclass
class Seen:
    """An open page and everything that it said or asked for while it was loaded."""

    page: Any
    load_s: float
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def of(self, expression: str) -> Any:
        return self.page.evaluate(expression)


def opened(browser: Any, path: Path, *, width: int = 1280, scheme: str = "light") -> Seen:
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    seen = Seen(page, 0.0)
    page.on("console", lambda message: seen.said.append(message.text))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.on("dialog", lambda dialog: (seen.said.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: seen.asked.append(request.url))
    begun = time.monotonic()
    page.goto(path.as_uri(), wait_until="load")
    seen.load_s = time.monotonic() - begun
    return seen


@pytest.mark.parametrize("name", ["ordinary", "hostile", "large"])
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_the_page_renders_without_a_word_or_a_request_and_never_scrolls_sideways(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    seen = opened(browser, pages[name], width=width)
    try:
        assert seen.said == []
        assert seen.asked == [pages[name].as_uri()]
        assert seen.of("document.documentElement.scrollWidth") == width
        assert seen.of("document.body.getBoundingClientRect().right") <= width
        shown = "[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width > 200).length"
        assert seen.of(shown) >= 5
        assert seen.of("document.querySelector('h1').getBoundingClientRect().height") > 20
        boxes = (
            "[...document.querySelectorAll('section, figure, header dl, blockquote, pre, .scroll')]"
            ".filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.className || e.id)"
        )
        assert seen.of(boxes) == []
    finally:
        seen.page.close()


def test_each_chart_is_drawn_for_the_width_at_hand(browser: Any, pages: dict[str, Path]) -> None:
    for width, shown, hidden in ((1280, "wide", "narrow"), (390, "narrow", "wide")):
        seen = opened(browser, pages["ordinary"], width=width)
        for css, count in ((shown, True), (hidden, False)):
            visible = f"[...document.querySelectorAll('svg.{css}')].some(s => s.getBoundingClientRect().width > 0)"
            assert seen.of(visible) is count
        smallest = (
            "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)"
            ".filter(h => h > 0))"
        )
        assert seen.of(smallest) > 9
        seen.page.close()


def test_a_dark_room_gets_dark_paper_and_light_ink(browser: Any, pages: dict[str, Path]) -> None:
    def brightness(of: str) -> str:
        return f"getComputedStyle(document.body).{of}.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"

    paper, ink = {}, {}
    for scheme in ("light", "dark"):
        seen = opened(browser, pages["ordinary"], scheme=scheme)
        paper[scheme], ink[scheme] = seen.of(brightness("backgroundColor")), seen.of(brightness("color"))
        seen.page.close()
    assert paper["light"] > 600 > 200 > paper["dark"]
    assert ink["dark"] > 600 > 200 > ink["light"]


def test_hostile_texts_are_text(browser: Any, pages: dict[str, Path]) -> None:
    seen = opened(browser, pages["hostile"])
    try:
        assert seen.of("document.querySelectorAll('script, img, iframe, object, b > *, pre > style').length") == 0
        assert seen.of("document.querySelectorAll('style').length") == 1
        assert "owned" not in seen.of("document.title").replace('document.title="owned"', "")
        assert seen.of("document.querySelector('blockquote').innerText").startswith("</pre></script><script>")
        assert seen.of("document.querySelector('#program pre').innerText.includes('onerror=')")
        assert seen.of("getComputedStyle(document.querySelector('main')).display") == "block"
        scripts = "(() => { const s = document.createElement('script'); s.textContent = 'document.title = 1';"
        seen.of(scripts + " document.body.append(s); })()")
        assert seen.of("document.title") != "1"  # the page's own policy refuses what its escaping might miss
    finally:
        seen.page.close()


def test_a_page_of_3840_rollouts_is_small(browser: Any, pages: dict[str, Path]) -> None:
    size = pages["large"].stat().st_size
    seen = opened(browser, pages["large"])
    nodes = seen.of("document.querySelectorAll('*').length")
    print(f"3,840 rollouts: {size / 1e3:.0f} kB, {nodes} elements, loaded in {seen.load_s:.2f} s")
    seen.page.close()
    assert size < LARGE_PAGE_BYTES < MAX_PAGE_BYTES
    assert nodes < MAX_PAGE_NODES
