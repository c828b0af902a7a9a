"""The command line in this process, curves that confirm or refute every claim, and a reader of pages."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from experiments import cli
from experiments.paper.claims import FAILING, PROJECTION, TRANSPORT
from experiments.paper.curves import Array, Curves
from experiments.paper.panels import PANELS
from experiments.shared.rules import NAMES

REPEATS, ITERATIONS = 2, 51
TIME = np.linspace(0, 1, ITERATIONS)
FALLING = 10 ** (-2 * TIME)
WITHOUT_JOBS = ("list", "report", "bench", "distributed")


def command(out: Path, *words: str) -> int:
    """The exit code; jobs are done here, so that what is patched is patched for them too."""
    return cli.main([*words, "--out", str(out), *(() if words[0] in WITHOUT_JOBS else ("--workers", "1"))])


def make(panel: str, loss: dict[str, Array], mean: dict[str, float], low: dict[str, float], positive: float) -> Curves:
    """Curves that are the same for each repeat, with constant cosines."""

    def full(values: list[Array | float]) -> Array:
        return np.stack([np.broadcast_to(value, (REPEATS, ITERATIONS)) for value in values])

    cosines = [full([of.get(rule, 1.0) for rule in NAMES]) for of in (mean, low, {"unconstrained": positive})]
    return Curves(panel, NAMES, full([loss.get(rule, FALLING) for rule in NAMES]), *cosines)


def confirming(panel: str, single: bool) -> Curves:
    """Data by which every claim holds."""
    if panel in PROJECTION + TRANSPORT:
        slow = 10 ** (-1.8 * TIME)
        loss = {"unconstrained": slow, "curvature": slow if panel in TRANSPORT else 10 ** (-1.9 * TIME)}
        low = {"unconstrained": 0.5, "curvature": 0.5}
        return make(panel, loss, low, low, 1.0)
    if panel in FAILING:
        uphill = panel == "eigen-rank2"
        mean = {"unconstrained": -0.5 if uphill else 0.1}
        return make(panel, {"unconstrained": 1 + 0.1 * TIME}, mean, {"unconstrained": -0.5}, 0.0 if uphill else 0.2)
    cosine = {"unconstrained": 0.5 if single else 0.999}
    return make(panel, {}, cosine, cosine, 1.0)


def refuting(panel: str, single: bool) -> Curves:  # noqa: ARG001
    """Data by which none does."""
    late = np.where(TIME <= 0.3, 1.0, 1e-3)
    flat = np.ones(ITERATIONS)
    if panel in PROJECTION + TRANSPORT:
        low = {"unconstrained": -0.1, "curvature": 0.5}
        return make(panel, {"unconstrained": late, "curvature": flat, "adaptive": flat}, low, low, 0.5)
    if panel in FAILING:
        low = {"unconstrained": 0.5, "curvature": 0.5}
        return make(panel, {"adaptive": flat}, low, low, 1.0)
    low = {"unconstrained": -0.5, "curvature": 0.5}
    return make(panel, {"unconstrained": flat, "adaptive": flat}, low, low, 0.0)


def in_both_precisions(curves: Callable[[str, bool], Curves]) -> dict[str, Curves]:
    """As the claims want them."""
    return {
        f"{'float32/' if single else ''}{name}": curves(name, single) for single in (False, True) for name in PANELS
    }


CONFIRMING, REFUTING = in_both_precisions(confirming), in_both_precisions(refuting)


class Page(HTMLParser):
    """Collects what the tests ask about, and whether every element is closed in order."""

    VOID = ("meta", "img", "source", "br", "link")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.images: list[str] = []
        self.links: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.images += [found[name] for name in ("src", "srcset") if name in found]
        self.links += [found["href"]] if "href" in found else []
        self.ids += [found["id"]] if "id" in found else []
        assert tag != "img" or found.get("alt"), "a picture without words"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag
