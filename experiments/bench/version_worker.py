"""The process in which a version of this project is timed, run in the folder of that version: requests are JSON lines.

Only what every version has is used: the public names. A request with a name builds that call, and answers its result;
a request for the time of a name answers the seconds of one call. What a version does not know is answered in words.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

N, BATCH = 10, 10


def call_of(name: str) -> Callable[[], Any]:
    """A call, by a name such as ``sphere, called``; forward alone unless it says ``with gradient``."""
    import torch

    import problems
    from declarative import DeclarativeNode

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, N, generator=generator, dtype=torch.float64)
    what, _, how = name.partition(", ")
    if what in ("SphereProjection", "SimplexProjection", "EntropicSimplex"):
        layer, v = getattr(problems, what)(), torch.ones_like(x)
        if how == "with gradient":
            x.requires_grad_()
            return lambda: torch.autograd.grad(layer(x), x, v)[0]
        return lambda: layer(x)
    if what == "OptimalTransport":
        costs = torch.rand(BATCH, N, N, generator=generator, dtype=x.dtype)
        transport = problems.OptimalTransport(float(how))
        return lambda: transport(costs)
    record = {"called": {"record": False}, "recorded": {"record": True}, "default": {}}[how]
    constraints: dict[str, Any] = {
        "sphere": {"equality": lambda x, u: (u.square().sum() - 1) / 2},  # noqa: ARG005
        "simplex": {"equality": lambda x, u: u.sum() - 1, "inequality": lambda x, u: -u},  # noqa: ARG005
    }[what]
    options = {**constraints, **record, "start": N, "solver": "newton"}
    node = DeclarativeNode(lambda x, u: (u - x).square().sum() / 2, **options)
    return lambda: node(x)


def main() -> None:
    """Serve until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a version prints goes elsewhere
    calls: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "name" in request:
                call = calls[request["name"]] = call_of(request["name"])
                answer: Any = call().tolist()
            else:
                start = time.process_time()
                calls[request["time"]]()
                answer = time.process_time() - start
        except (AttributeError, TypeError) as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
