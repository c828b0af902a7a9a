"""The directory of results: what is written where, and what counts as finished.

    out/<panel>/             curves.csv, figure.png, figure.svg, and panel.json, which is written last
    out/float32/<panel>/     the same in single precision
    out/summary.csv          a line for each panel and rule
    out/run.json             versions, settings, machine and dates

A file is either complete or absent, and a panel is finished once its panel.json is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared import machine
from ..shared.files import csv_text, read_json, write, write_json
from .curves import Curves
from .panels import PANELS
from .training import Outcome, Settings

DTYPES = ("float64", "float32")
PUBLISHED = "published"  # the directory of panels with the losses and targets of the published code
PROBES = ("repeat", "call", "lowest", "median", "mean", "agreeing", "cheap")
KEPT = ("settings", "seconds", "cheap_share", "warnings", "finished")
SUMMARY = (
    *("panel", "rule", "repeats", "iterations", "final_loss_mean", "final_loss_min", "final_loss_max"),
    *("cosine_mean", "cosine_min", "cosine_positive", "cheap_share", "panel_seconds", "seconds_per_rule"),
)


@dataclass(frozen=True)
class Finished:
    """A panel that was run."""

    curves: Curves
    settings: dict[str, Any]
    seconds: float
    cheap_share: float | None  # of the steps of the adaptive rule
    warnings: dict[str, int]
    finished: str


def directory(out: Path, dtype: str, panel: str) -> Path:
    """Where a panel is kept."""
    return out / panel if dtype == DTYPES[0] else out / dtype / panel


def save(out: Path, settings: Settings, outcome: Outcome, pictures: Mapping[str, bytes]) -> None:
    """Keep what came of a panel, with files of pictures, and bring the tables of all panels up to date."""
    curves = outcome.curves
    place = directory(out, settings.dtype, curves.panel)
    (place / "panel.json").unlink(missing_ok=True)
    write(place / "curves.csv", curves.to_csv())
    for name, content in pictures.items():
        write(place / name, content)
    if outcome.probes:
        probes = [(i, *dataclasses.astuple(probe)) for i, history in enumerate(outcome.probes) for probe in history]
        write(place / "probes.csv", csv_text(PROBES, probes))
    measured = outcome.seconds, outcome.cheap_share, outcome.warnings
    finished = Finished(curves, dataclasses.asdict(settings), *measured, machine.now())
    record = {name: getattr(finished, name) for name in KEPT} | {
        "summary": summarise(finished),  # so that the table of all panels needs no look at the curves
        "machine": machine.describe(),
    }
    write_json(place / "panel.json", record)
    write_tables(out)


def settings_of(out: Path, dtype: str, panel: str) -> dict[str, Any] | None:
    """The settings that a finished panel was run with; None if it is not finished."""
    record = _record(directory(out, dtype, panel))
    return None if record is None else record["settings"]


def load(out: Path, dtype: str) -> dict[str, Finished]:
    """All finished panels of this precision, in the paper's order."""
    found = {}
    for name in PANELS:
        place = directory(out, dtype, name)
        record = _record(place)
        if record is not None:
            with open(place / "curves.csv", newline="", encoding="utf-8") as lines:
                curves = Curves.from_csv(lines)
            found[name] = Finished(curves, **{key: record[key] for key in KEPT})
    return found


def write_tables(out: Path) -> None:
    """Write summary.csv for each precision, and run.json."""
    panels: dict[str, Any] = {}
    for dtype in DTYPES:
        records = {name: record for name in PANELS if (record := _record(directory(out, dtype, name))) is not None}
        if records:
            rows = [row for record in records.values() for row in record["summary"]]
            write(directory(out, dtype, "summary.csv"), csv_text(SUMMARY, rows))
            panels[dtype] = {
                name: {key: record[key] for key in ("settings", "seconds", "finished", "machine")}
                for name, record in records.items()
            }
    write_json(out / "run.json", {"date": machine.now(), **machine.describe(), "panels": panels})


def summarise(one: Finished) -> list[list[Any]]:
    """The lines of summary.csv of a panel, one for each rule."""
    rows = []
    for rule in one.curves.rules:
        mine = one.curves.of(rule)
        final = mine.loss[..., -1]
        losses = (final.mean(), final.min(), final.max())
        cosines = (mine.cosine_mean.mean(), mine.cosine_min.min(), mine.cosine_positive.mean())
        cheap = "" if rule != "adaptive" or one.cheap_share is None else one.cheap_share
        seconds = (one.seconds, one.seconds / len(one.curves.rules))
        sizes = mine.loss.shape[1:]
        rows.append([one.curves.panel, rule, *sizes, *map(float, losses), *map(float, cosines), cheap, *seconds])
    return rows


def _record(place: Path) -> dict[str, Any] | None:
    return read_json(place / "panel.json")
