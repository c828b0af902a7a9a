"""Look at the built pages in headless Chromium, at the width of a desk and of a phone: do they show what they should?

    python docs/look.py site     # says nothing if all is well; without Chromium it says that nothing was looked at

Each page is loaded into a frame of each width. It must not be wider than the frame, every picture must have arrived,
and nothing may be printed on the console. Then a page is opened as a file, and the search must find something.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

WIDTHS = (1300, 390)
PATIENCE = 240  # seconds for all pages
LOOKER = """<!doctype html><body><script>
const pages = %s, widths = %s, seen = []
const later = (ms) => new Promise((done) => setTimeout(done, ms))
async function look(page, width) {
  const frame = document.createElement("iframe")
  frame.width = width; frame.height = 900; frame.src = page
  const loaded = new Promise((done) => { frame.onload = done })
  document.body.append(frame)
  await loaded
  await later(100)
  const shown = frame.contentDocument
  const wide = shown.documentElement.scrollWidth - frame.contentWindow.innerWidth
  if (wide > 0) seen.push(`${page} at ${width} pixels: ${wide} pixels too wide`)
  for (const image of shown.images)
    if (!image.complete || image.naturalWidth === 0) seen.push(`${page}: no picture ${image.getAttribute("src")}`)
  frame.remove()
}
(async () => {
  for (const page of pages) for (const width of widths) await look(page, width)
  await fetch("/seen", { method: "POST", body: JSON.stringify(seen) })
})()
</script>"""


class Pages(http.server.SimpleHTTPRequestHandler):
    """The site, a page that looks at all of the others, and a place to tell what was seen."""

    looker = ""
    seen: list[str] | None = None
    told = threading.Event()

    def do_GET(self) -> None:
        """Serve the page that looks, or a file of the site."""
        if self.path != "/look":
            return super().do_GET()
        body = self.looker.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)
        return None

    def do_POST(self) -> None:
        """Take what was seen."""
        type(self).seen = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.told.set()

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


@contextlib.contextmanager
def browser(executable: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Chromium without a window and with a profile of its own, whose console goes to stderr; ended on the way out."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        plain = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        plain += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        logged = ["--enable-logging=stderr", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [executable, *plain, *logged, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def on_all_pages(site: Path, executable: str) -> list[str]:
    """What is wrong with the pages."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
    Pages.looker = LOOKER % (json.dumps([f"/{page}" for page in pages]), json.dumps(WIDTHS))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/look"
        with browser(executable, "--remote-debugging-port=0", url) as process:
            lines: list[str] = []
            reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
            reader.start()
            in_time = Pages.told.wait(PATIENCE)
        reader.join(5)
    finally:
        server.shutdown()
    console = {found[1] for line in lines if (found := re.search(r"CONSOLE:\d+\] (.*)", line))}
    return (Pages.seen or []) + sorted(console) + ([] if in_time else ["the pages did not load in time"])


def search_in_files(site: Path, executable: str) -> list[str]:
    """Whether the search works on a page that is opened as a file."""
    url = f"{(site / 'index.html').resolve().as_uri()}?q=multipliers"
    with browser(executable, "--dump-dom", "--virtual-time-budget=20000", url) as process:
        try:
            dom, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return ["the page that was opened as a file did not load"]
    return [] if "md-search-result__item" in dom else ["the search finds nothing on a page that is opened as a file"]


def main(site: Path) -> int:
    """Print what is wrong; the exit status says whether something is."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        print("there is no Chromium here: the pages were built, but not looked at")
        return 0
    wrong = on_all_pages(site, executable) + search_in_files(site, executable)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
