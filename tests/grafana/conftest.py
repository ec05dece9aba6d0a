"""The page in a real browser, and the servers behind it; only when the command line names this folder."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DASHBOARDS = ROOT / "grafana" / "dashboards"
ROW_PX, TOP_PX, WIDTH_PX = 38, 190, 1600
DRAWN_S = 90.0

sys.path.insert(0, str(HERE))  # for the recorded runs

HOW_TO_GET = {"npm": "apt-get install npm", "chromium": "apt-get install chromium"}


def pytest_ignore_collect(collection_path, config):
    """Leave these tests out unless asked for: they need npm, Chromium, 500 MB and minutes."""
    asked = any("tests/grafana" in str(argument) for argument in config.invocation_params.args)
    return True if collection_path.suffix == ".py" and not asked else None


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def servers() -> ModuleType:
    """The servers of the end-to-end tests."""
    return _load("servers_of_e2e", ROOT / "tests" / "e2e" / "conftest.py")


def need(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not installed: {HOW_TO_GET[name]}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def newest(*paths: Path) -> float:
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return max(file.stat().st_mtime for file in files)


@pytest.fixture(scope="session")
def modules() -> Path:
    """The packages of the page, installed from its lock file."""
    npm, installed = need("npm"), HERE / "node_modules" / ".package-lock.json"
    lock = HERE / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        subprocess.run([npm, "ci", "--legacy-peer-deps", "--no-audit", "--no-fund"], cwd=HERE, check=True)
    return installed.parent


@pytest.fixture(scope="session")
def built(modules) -> Path:
    """The page's own files, built anew when a source has changed."""
    index = HERE / "dist" / "index.html"
    sources = newest(HERE / "src", HERE / "index.html", HERE / "vite.config.ts", HERE / "package-lock.json")
    if not index.exists() or index.stat().st_mtime < sources:
        subprocess.run([need("npm"), "run", "--silent", "build"], cwd=HERE, check=True)
    return index.parent


class _Files(http.server.SimpleHTTPRequestHandler):
    """The built page, and the dashboards below ``dashboards/``."""

    def translate_path(self, path: str) -> str:
        inside = path.partition("?")[0].removeprefix("/dashboards/")
        return str(DASHBOARDS / inside) if path.startswith("/dashboards/") else super().translate_path(path)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture(scope="session")
def site(built) -> Iterator[str]:
    """Address of the page."""
    handler = functools.partial(_Files, directory=str(built))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass(frozen=True)
class Panel:
    """A panel as it stands in the browser.

    Args:
        title: Its title.
        kind: Its type in the dashboard.
        text: All that can be read in it.
        series: Names of its series.
        marks: How many annotations it got.
        ink: Coloured pixels of its chart: lines, areas and bars; axes and grid are grey.
        is_empty: Whether it says that there is nothing to show.
    """

    title: str
    kind: str
    text: str
    series: list[str]
    marks: int
    ink: int
    is_empty: bool


LOOK = """() => Object.fromEntries([...document.querySelectorAll('[data-panel]')].map((panel) => {
  let ink = 0;
  for (const canvas of panel.querySelectorAll('canvas')) {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < data.length; i += 4) {
      const [red, green, blue, alpha] = data.slice(i, i + 4);
      ink += alpha > 20 && Math.max(red, green, blue) - Math.min(red, green, blue) > 40;
    }
  }
  const { panel: id, series, marks } = panel.dataset;
  const is_empty = panel.querySelector('[data-nothing]') !== null;
  return [id, { text: panel.innerText, series: JSON.parse(series), marks: Number(marks), ink, is_empty }];
}))"""


PROGRESS = """[
  document.querySelectorAll('[data-panel]').length, window.page?.sent.length, window.page?.waiting()
]"""


class Browser:
    """A real browser that opens dashboards.

    Args:
        chromium: Playwright's handle of it.
        site: Address of the page.
    """

    def __init__(self, chromium: Any, site: str) -> None:
        self._chromium = chromium
        self._site = site
        self.errors: list[str] = []
        self.offered: dict[str, list[str]] = {}

    def open(self, uid: str, prometheus: str, picture: Path | None = None, **address: str) -> list[Panel]:
        """Draw a dashboard and return its panels once all are drawn.

        Args:
            uid: Which one.
            prometheus: Address of the server with the data.
            picture: Where to write a screenshot.
            address: Further parts of the address, such as ``from``, and ``name`` for the variable ``name``.
        """
        content = json.loads((DASHBOARDS / f"{uid}.json").read_text(encoding="utf-8"))
        wanted = {panel["id"]: panel for panel in content["panels"] if panel["type"] != "row"}
        rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in content["panels"])
        parts = {"dashboard": f"dashboards/{uid}.json", "prometheus": prometheus, **address}
        page = self._chromium.new_page(viewport={"width": WIDTH_PX, "height": rows * ROW_PX + TOP_PX})
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        try:
            page.goto(f"{self._site}?{urlencode(parts)}")
            self._wait(page, len(wanted))
            seen = page.evaluate(LOOK)
            self.offered = page.evaluate("page.offered()")
            if picture is not None:
                page.screenshot(path=str(picture))
        finally:
            page.close()
        assert self.errors == []
        return [
            Panel(title=wanted[int(number)]["title"], kind=wanted[int(number)]["type"], **panel)
            for number, panel in seen.items()
        ]

    def _wait(self, page: Any, panels: int) -> None:
        """Wait until each panel is there, and nothing has been asked for a second."""
        deadline, quiet_since, before = time.monotonic() + DRAWN_S, time.monotonic(), None
        while time.monotonic() < deadline:
            now = page.evaluate(PROGRESS)
            if now != before or now[0] != panels or now[2]:
                before, quiet_since = now, time.monotonic()
            if time.monotonic() - quiet_since > 1.0:
                return
            page.wait_for_timeout(100)
        pytest.fail(f"{before} panels, queries and open queries after {DRAWN_S:g} s; {panels} panels wanted")


@pytest.fixture(scope="session")
def browser(site) -> Iterator[Browser]:
    program = need("chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield Browser(chromium, site)
        chromium.close()
