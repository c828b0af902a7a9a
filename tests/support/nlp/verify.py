"""Check the table against two independent solvers from several starts: ``python -m tests.support.nlp.verify HS71``.

The known value must be reached from some start, and no feasible point may be better. With ``--write`` the best points
are kept in ``solutions.json``: one for the optimum and one for each of the other minima. Needs IPOPT, see ``peers.py``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator

import numpy as np
import torch

from . import TABLE
from .peers import Array, ipopt, slsqp
from .programme import SOLUTIONS, Programme
from .run import FEASIBLE, LateError, limited

STARTS = 6
SECONDS = 15.0


def starts(programme: Programme) -> Iterator[Array]:
    """The published start, the known solutions, and points around the start within the bounds."""
    yield np.array(programme.start, dtype=np.float64)
    yield from (point.numpy() for point in programme.solutions)
    generator = np.random.default_rng(0)
    for spread in np.linspace(0.1, 1.0, STARTS):
        around = programme.start + spread * generator.standard_normal(len(programme.start)) * (
            1 + np.abs(programme.start)
        )
        yield around if programme.bounds is None else np.clip(around, *(bound.numpy() for bound in programme.bounds))


def feasible_points(programme: Programme) -> Iterator[tuple[float, float, Array]]:
    """Value, violation and place of whatever the solvers end at, claimed as a solution or not."""
    for start in starts(programme):
        for solve in (ipopt, slsqp):
            try:
                with limited(SECONDS):
                    point = solve(programme, start).point
            except (LateError, ValueError, RuntimeError):  # no answer from here
                continue
            place = torch.from_numpy(point)
            value, violation = programme.objective(place).item(), programme.violation(place)
            if np.isfinite(value) and violation <= FEASIBLE / 10:
                yield value, violation, point


def verify(programme: Programme) -> tuple[str, list[Array | None]]:
    """What was found, in words, and the best points for each of the known values."""
    found = list(feasible_points(programme))
    best = []
    for known in (programme.optimum, *programme.others):
        near = [one for one in found if abs(programme.excess(one[0], known)) <= programme.tolerance]
        best.append(min(near, key=lambda one: one[1])[2] if near else None)
    excess = min(programme.excess(value) for value, *_ in found) if found else float("nan")
    right = best[0] is not None and excess >= -programme.tolerance
    values = sorted({f"{value:.8g}" for value, *_ in found}, key=float)
    return f"{'right' if right else 'WRONG':6}{excess:10.1e}  {', '.join(values)}", best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="problems; by default all")
    parser.add_argument("--write", action="store_true", help="keep the points")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kept = json.loads(SOLUTIONS.read_text())
    for programme in (p for p in TABLE if not options.names or p.name in options.names):
        words, points = verify(programme)
        print(f"{programme.name:28}{words}", flush=True)
        if options.write and all(point is not None for point in points):
            kept[programme.name] = [point.tolist() for point in points]
            rows = [f"{json.dumps(name)}: {json.dumps(points)}" for name, points in kept.items()]
            SOLUTIONS.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
