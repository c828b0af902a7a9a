"""How many hops from file to file a reader makes who follows one call of a node.

    python -m tests.support.hops

A hop is a pair (file that calls, file that is called) within declarative/ and problems/, counted once however often it
is made. What stands between two files of ours (torch, generated methods of dataclasses) is looked through. The rooms
kernels/, linear/, solvers/, recording/ and optimality/ count as one file each. Every hop belongs to the first of these
that applies:

    linear     from or into linear/ or the compiled core in kernels/
    wall       from or into torchside.py
    solver     made while a solver is at work, below its entry
    verdict    made while optimality/ is at work, below its entry, as a rule to evaluate derivatives
    path       all others: the call of the node itself
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from declarative import DeclarativeNode

ROOT = Path(__file__).parents[2]
ROOMS = ("kernels", "linear", "solvers", "recording", "optimality")
KINDS = ("path", "verdict", "solver", "linear", "wall")
Hop = tuple[str, str]


def _file(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    package, *parts = path.relative_to(ROOT).with_suffix("").parts
    if package not in ("declarative", "problems"):
        return None
    return parts[0] if parts[0] in ROOMS else "/".join(parts)


def _callers(frame: FrameType) -> Iterator[str]:
    """The files that led to a call, the nearest first."""
    above = frame.f_back
    while above is not None:
        if (name := _file(above)) is not None:
            yield name
        above = above.f_back


def _kind(hop: Hop, callers: list[str]) -> str:
    if "linear" in hop or "kernels" in hop:
        return "linear"
    if "torchside" in hop:
        return "wall"
    if "solvers" in callers:
        return "solver"
    return "verdict" if "optimality" in callers else "path"


def hops_of(call: Callable[[], object]) -> dict[str, list[Hop]]:
    """The hops of a call by their kinds, in the order in which they are first made; in this thread alone."""
    found: dict[Hop, str] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (name := _file(frame)) is None:
            return
        callers = list(_callers(frame))
        if callers and callers[0] != name:
            hop = (callers[0], name)
            kind = _kind(hop, callers)
            if hop not in found or kind == "path":  # what is on the path once is on the path
                found[hop] = kind

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {kind: [hop for hop, one in found.items() if one == kind] for kind in KINDS}


def hops_of_node(solver: Any, record: bool = False) -> dict[str, dict[str, list[Hop]]]:
    """Those of a forward and of a backward call of a small node, called before."""
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() / 2,
        lambda _, u: (u.square().sum() - 1) / 2,
        solver=solver,
        start=3,
        record=record,
    )
    x = (torch.eye(3, dtype=torch.float64)[:2] + 0.3).requires_grad_()
    for _ in range(3):
        node(x).sum().backward()
    found: list[torch.Tensor] = []
    forward = hops_of(lambda: found.append(node(x)))
    # The engine of autograd runs a backward pass of the CPU in the thread that asks for it.
    return {"forward": forward, "backward": hops_of(lambda: found[0].sum().backward())}


def main() -> None:
    """Print them."""
    for solver in (torch.nn.functional.normalize, "newton"):
        for record in (False, True):
            for way, hops in hops_of_node(solver, record).items():
                name = solver if isinstance(solver, str) else "closed form"
                counts = ", ".join(f"{len(hops[kind])} {kind}" for kind in KINDS)
                files = {name for found in hops.values() for hop in found for name in hop}
                total = sum(map(len, hops.values()))
                print(f"{name}, record={record}, {way}: {total} hops in {len(files)} files: {counts}")
                for kind in ("path", "verdict"):
                    print(f"    {kind}: " + ", ".join(f"{a} -> {b}" for a, b in hops[kind]))


if __name__ == "__main__":
    main()
