"""What the two applications have in common: bundled data, the time spent in a layer, and where results are kept.

out/<name>/<name>.json    settings and everything that was measured; written last
out/<name>/*.csv, *.png   the same as tables and pictures
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from declarative import NumericalWarning

from ..paper import store

TITLES = {
    "sorting": "Learning to sort handwritten digits",
    "decision": "Learning to allocate treatment",
}


def load_bundled(name: str, **options: Any) -> Any:
    """A data set that comes with scikit-learn, without a download.

    Raises:
        ValueError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as missing:
        raise ValueError(
            "the data come with scikit-learn, which is not installed: pip install '.[experiments]' brings it."
        ) from missing
    return getattr(datasets, f"load_{name}")(**options)


def add_arguments(parser: argparse.ArgumentParser, defaults: Any) -> None:
    """The options of an application's command."""
    parser.add_argument("--seeds", type=int, default=defaults.seeds, help="how many, each with its split (%(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="the first one (%(default)s)")
    parser.add_argument("--steps", type=int, default=defaults.steps, help="of training (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")


def run(
    args: argparse.Namespace,
    defaults: Any,
    quick: Any,
    measure: Callable[[Any], dict[str, Any]],
    save: Callable[[Path, dict[str, Any]], Path],
    report: ModuleType,
) -> int:
    """Train, print a table, and keep the results; the settings are a dataclass with seeds, seed and steps."""
    chosen = {name: getattr(args, name) for name in ("seeds", "seed", "steps")}
    settings = quick if args.quick else dataclasses.replace(defaults, **chosen)
    if min(settings.seeds, settings.steps) < 1:
        raise ValueError("--seeds and --steps must be at least 1.")
    began = time.perf_counter()
    with one_thread():
        record = measure(settings)
    record["wall_seconds"] = time.perf_counter() - began
    place = save(args.out, record)
    report.draw(place, record)
    print(report.text(record))
    print(f"Results are in {place}; 'python -m experiments report' makes a page of them.")
    return 0


@dataclass
class Clock:
    """The seconds that were spent in a layer, forward and backward, and in all of training.

    They are seconds of the processor: with one thread those of the clock on the wall, but for what other programs take.
    """

    forward: float = 0.0
    backward: float = 0.0
    total: float = 0.0

    def __call__(self, layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """layer(x). The backward pass is timed from the gradient of its output to that of its input."""
        began = time.process_time()
        y = layer(x)
        self.forward += time.process_time() - began
        entered = [0.0]

        def enter(_: Tensor) -> None:
            entered[0] = time.process_time()

        def leave(_: Tensor) -> None:
            self.backward += time.process_time() - entered[0]

        y.register_hook(enter)
        x.register_hook(leave)
        return y

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block as training."""
        began = time.process_time()
        try:
            yield
        finally:
            self.total += time.process_time() - began


@contextlib.contextmanager
def counted_warnings() -> Iterator[dict[str, int]]:
    """The first lines of the numerical warnings of a block, and how often each came."""
    counts: dict[str, int] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericalWarning)
        yield counts
    counts.update(Counter(str(one.message).splitlines()[0] for one in caught))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """The matrices are small, and times are compared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def save(out: Path, name: str, record: Mapping[str, Any], tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Path:
    """Keep a record, and its tables as CSV; returns the directory."""
    place = out / name
    (place / f"{name}.json").unlink(missing_ok=True)
    for title, rows in tables.items():
        store.write(place / f"{title}.csv", store.csv_text(list(rows[0]), [list(row.values()) for row in rows]))
    about = {"finished": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), **store.describe_machine()}
    store.write(place / f"{name}.json", json.dumps({**record, **about}) + "\n")
    return place


def load(out: Path, name: str) -> dict[str, Any] | None:
    """The record of an application; None if it was not run."""
    try:
        record: dict[str, Any] = json.loads((out / name / f"{name}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return record


# Numbers of several seeds in words.


def mean(values: Sequence[float]) -> float:
    """The plain mean."""
    return sum(values) / len(values)


def spread(values: Sequence[float], form: str) -> str:
    """The mean, and the range if there is one."""
    if len(values) == 1:
        return format(values[0], form)
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def consistency(differences: Sequence[float], better: str, worse: str) -> str:
    """Whether differences between paired runs, positive if better, have the same sign on every seed."""
    count = len(differences)
    if all(x == 0 for x in differences):
        return "the same on every seed" if count > 1 else "the same"
    if all(x > 0 for x in differences):
        return f"{better} on every seed" if count > 1 else f"{better} on the only seed"
    if all(x < 0 for x in differences):
        return f"{worse} on every seed" if count > 1 else f"{worse} on the only seed"
    return f"{better} on {sum(x > 0 for x in differences)} of {count} seeds"


def warnings_list(counts: Mapping[str, int]) -> str:
    """Numerical warnings as a piece of a page; nothing if there were none."""
    lines = "".join(f"<li>{escape(text)} ({count} times)</li>" for text, count in counts.items())
    return f"<details><summary>Numerical warnings</summary><ul>{lines}</ul></details>" if lines else ""
