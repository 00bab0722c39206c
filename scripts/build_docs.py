"""Builds the documentation site into build/site and checks it.

    python scripts/build_docs.py [--repository URL]

Pages link to the repository if its URL is given. Exits with 1 if the build gives a warning, a link inside the
site leads nowhere, a page loads something from another host, a page of docs/ is not in the navigation, or a
public name of the package is missing in the API reference.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import types
import zlib
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import gnnsparse

ROOT = Path(__file__).resolve().parents[1]
DOCS, SITE = ROOT / "docs", ROOT / "build" / "site"
#: Modules, beside packages with an `__all__`, whose names are public.
PUBLIC_MODULES = ("gnnsparse", "gnnsparse.patterns.masks", "gnnsparse.registry", "gnnsparse.testing")
#: Packages inside of the project: what their names do is described where users call it.
INTERNAL_PACKAGES = ("gnnsparse.bench",)
#: Elements, and their attribute, that a browser loads when it shows a page.
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """The targets in a page, and what it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if (where := found.get(LOADED.get(tag, ""))) and found.get("rel") != "canonical":
            self.loaded.append(where)


def is_external(target: str) -> bool:
    parts = urlsplit(target)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def link_problems(site: Path) -> Iterator[str]:
    """Name the links and files that are missing, and what comes from other hosts."""
    # The page for addresses that do not exist has links from the root of a host.
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        name = path.relative_to(site)
        yield from (f"{name} loads {url}" for url in page.loaded if is_external(url))
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if is_external(target) or parts.scheme in ("mailto", "data", "javascript"):
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if to.is_dir():
                to /= "index.html"
            if not to.is_file():
                yield f"{name} links to {target}, which does not exist"
            elif parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].ids:
                yield f"{name} links to {target}, which has no such heading"
    for path in site.rglob("*.css"):
        style = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for url in re.findall(r"(?:url\(|@import\s)\s*[\"']?((?:https?:)?//[^\"')\s]+)", style):
            yield f"{path.relative_to(site)} loads {url}"


def inventory(site: Path) -> set[str]:
    """Return the names that the API reference describes."""
    body = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(body).decode().splitlines()}


def public_modules() -> list[str]:
    packages = (module for module in pkgutil.walk_packages(gnnsparse.__path__, "gnnsparse.") if module.ispkg)
    names = {module.name for module in packages if not module.name.startswith(INTERNAL_PACKAGES)}
    return sorted(names | set(PUBLIC_MODULES))


def undocumented(modules: Iterable[types.ModuleType], described: set[str]) -> Iterator[str]:
    """Name what a module's `__all__` has and the reference neither has there nor where it is defined."""
    for module in modules:
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, types.ModuleType):  # it is described if its own names are
                continue
            home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
            if not described & {f"{module.__name__}.{name}", home}:
                yield f"{module.__name__}.{name} is not in the API reference"


def build(repository: str) -> Iterator[str]:
    """Build the site and name the warnings; `repository` is the URL that pages link to, or ""."""
    settings = (ROOT / "zensical.toml").read_text()
    if repository:
        settings = settings.replace("[project]\n", f"[project]\nrepo_url = {json.dumps(repository)}\n", 1)
    # Beside zensical.toml, because folders are named from there.
    with tempfile.NamedTemporaryFile("w", dir=ROOT, prefix=".zensical-", suffix=".toml") as file:
        file.write(settings)
        file.flush()
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", file.name],
            cwd=ROOT,
            env={**os.environ, "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode != 0:
        yield f"zensical failed:\n{done.stdout}"
    # Warnings of what reads the docstrings do not end a strict build.
    yield from re.findall(r"^(?:griffe|mkdocstrings):.*", done.stdout, re.MULTILINE)


def problems(repository: str) -> Iterator[str]:
    failed = False
    for problem in build(repository):
        failed = True
        yield problem
    if failed:
        return
    yield from link_problems(SITE)
    navigation = (ROOT / "zensical.toml").read_text()
    for source in sorted(DOCS.rglob("*.md")):
        if f'"{source.relative_to(DOCS)}"' not in navigation:
            yield f"{source.relative_to(ROOT)} is not in the navigation of zensical.toml"
    modules = [importlib.import_module(name) for name in public_modules()]
    yield from undocumented(modules, inventory(SITE))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repository", metavar="URL", default="", help="where the repository is")
    found = list(problems(parser.parse_args().repository))
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        return 1
    print(f"{SITE.relative_to(ROOT)}: {len(inventory(SITE))} names in the API reference, no warnings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
