"""Pages of the site in headless Chromium: nothing is cut or wider than the screen, in light and in dark.

The browser is GNNSPARSE_CHROMIUM, or what PATH has.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import itertools
import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

aiohttp = pytest.importorskip(
    "aiohttp", reason="aiohttp, which the browser is spoken to with, is not installed"
)

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = os.environ.get("GNNSPARSE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
PAGES = ("index", "howto/own-data", "results", "training", "api/nn")
SCREENS = {"desktop": (1280, 800), "phone": (390, 844)}
#: What is wrong on a page: wider than the screen, or texts of a figure that are cut or lie on each other.
PROBLEMS = """
(async (width, scheme) => {
  const found = [], root = document.documentElement;
  const scrolls = e => e && (["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX)
    || scrolls(e.parentElement));
  if (root.scrollWidth > width) {
    const wide = [...document.body.querySelectorAll("*")].filter(
      e => e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement));
    found.push(`${root.scrollWidth} pixels wide: ${wide.slice(0, 3).map(e => e.outerHTML.slice(0, 80))}`);
  }
  const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1
    && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  for (const image of document.querySelectorAll("img")) {
    if (!image.naturalWidth) found.push(`${image.src} is not shown`);
    if (!image.src.endsWith(".svg")) continue;
    const place = document.body.appendChild(document.createElement("div"));
    place.attachShadow({mode: "open"}).innerHTML = await (await fetch(image.src)).text();
    const figure = place.shadowRoot.querySelector("svg"), texts = [...figure.querySelectorAll("text")];
    const boxes = texts.map(text => text.getBoundingClientRect());
    texts.forEach((text, i) => {
      if (!inside(boxes[i], figure.getBoundingClientRect())) found.push(`cut: ${text.textContent}`);
      if (boxes.some((box, j) => j < i && meet(box, boxes[i]))) found.push(`on another: ${text.textContent}`);
    });
    if (!texts.length) found.push(`${image.src} has no text`);
    place.remove();
  }
  // Colours as the screen has them: drawn on a canvas.
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, 1, 1);
  const bright = pen.getImageData(0, 0, 1, 1).data.slice(0, 3).every(value => value > 127);
  if (bright != (scheme == "light")) found.push(`the page is not ${scheme}`);
  return found;
})
"""


class Tab:
    """A tab of the browser, spoken to in its DevTools protocol."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._ids, self.errors = socket, itertools.count(), list[str]()

    async def call(self, method: str, until: str = "", **options: Any) -> dict[str, Any]:
        """Call a method; return its result, after the event `until` if it is given."""
        number, result = next(self._ids), None
        await self._socket.send_json({"id": number, "method": method, "params": options})
        while True:
            said = await self._socket.receive_json(timeout=60)
            if said.get("id") == number:
                assert "error" not in said, said
                result = said["result"]
            if said.get("method") == "Runtime.exceptionThrown":
                self.errors.append(said["params"]["exceptionDetails"]["exception"]["description"])
            if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.errors.append(said["params"]["entry"]["text"])
            until = "" if said.get("method") == until else until
            if result is not None and not until:
                return result

    async def value_of(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, which may be a promise."""
        options = {"returnByValue": True, "awaitPromise": True}
        done = await self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def show(self, url: str, screen: str, scheme: str) -> list[str]:
        """Show a page on a screen; return what is wrong with it."""
        width, height = SCREENS[screen]
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": screen == "phone"}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme_of = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=scheme_of)
        await self.call("Page.navigate", url=url, until="Page.loadEventFired")
        found: list[str] = await self.value_of(f"({PROBLEMS})({width}, '{scheme}')")
        return found


@contextlib.asynccontextmanager
async def open_tab(folder: Path) -> AsyncIterator[Tab]:
    """Start a browser with its files in a folder; yield its tab."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    command = [str(BROWSER), *options, f"--user-data-dir={folder}", "about:blank"]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = folder / "DevToolsActivePort"
        for _ in range(300):
            if port.exists() and port.read_text().count("\n"):
                break
            assert browser.poll() is None, f"{BROWSER} ended with {browser.returncode}"
            await asyncio.sleep(0.1)
        at = f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"
        async with aiohttp.ClientSession() as session:
            async with session.get(at) as answer:
                tabs = await answer.json()
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                tab = Tab(socket)
                for name in ("Page", "Runtime", "Log"):
                    await tab.call(f"{name}.enable")
                yield tab
    finally:
        browser.terminate()
        browser.wait(30)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder; yield its URL."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: set GNNSPARSE_CHROMIUM to one")


@needs_browser
@pytest.mark.slow
def test_pages_fit_their_screens_in_light_and_dark(site: Path, tmp_path: Path) -> None:
    async def visit(address: str) -> dict[str, list[str]]:
        async with open_tab(tmp_path) as tab:
            found = {}
            for page, screen, scheme in itertools.product(PAGES, SCREENS, ("light", "dark")):
                problems = await tab.show(f"{address}/{page}.html", screen, scheme)
                found[f"{page}, {screen}, {scheme}"] = problems + tab.errors
                tab.errors.clear()
            return found

    with served(site) as address:
        found = asyncio.run(visit(address))
    assert len(found) == 20
    assert {where: problems for where, problems in found.items() if problems} == {}


@needs_browser
@pytest.mark.slow
def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "figure.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="300" viewBox="0 0 100 40">'
        '<text x="5" y="20">left</text><text x="9" y="22">over</text><text x="90" y="38">right</text></svg>'
    )
    (folder / "index.html").write_text(
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<body style="background:#fff"><p id=wide style="width:500px">a</p><pre style="overflow:auto">'
        f"{'b' * 900}</pre><img src=figure.svg><script>throw new Error('broken')</script>"
    )

    async def visit(address: str) -> tuple[list[str], list[str]]:
        async with open_tab(tmp_path / "browser") as tab:
            return await tab.show(f"{address}/index.html", "phone", "dark"), tab.errors

    with served(folder) as address:
        found, errors = asyncio.run(visit(address))
    assert found[0].startswith("508 pixels wide: ")
    assert 'id="wide"' in found[0]
    assert "<pre" not in found[0]
    assert found[1:] == ["on another: over", "cut: right", "the page is not dark"]
    assert len(errors) == 1
    assert "Error: broken" in errors[0]
