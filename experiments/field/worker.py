"""The process of a library: it imports the library once, and splits off a process for every cell that it is asked for.

Requests come as lines of JSON, and so do the answers. A cell that takes too long, or that ends its process, is told as
such: neither hurts the next one.
"""

from __future__ import annotations

import resource
import sys
import traceback
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..shared.memory import in_use
from ..shared.processes import serve
from .cases import DoesNotApplyError
from .families import FAMILIES
from .forked import run_forked
from .libraries import LIBRARIES
from .measure import measure

ROOM = 4 * 2**30  # bytes that a cell may take: unrolled loops take what they get


def answer(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Load the library, or measure a cell in a process of its own; what became of it."""
    if "load" in request:
        LIBRARIES[name].load()
        return {"ready": LIBRARIES[name].version}
    return run_forked(partial(cell, name, request), request["limit"])


def cell(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Measure, and leave the answer to be judged in the file that is named."""
    if size := in_use("VmSize"):
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, resource.RLIM_INFINITY))
    try:
        case = FAMILIES[request["family"]].make(request["size"], request["batch"], request["seed"])
        forward = LIBRARIES[name].build(case, request["variant"])
        times, found = measure(forward, case, request["budget"], request["limit"])
    except DoesNotApplyError as reason:
        return {"not": str(reason)}
    except BaseException as error:  # whatever a library raises is its answer, and a panic in Rust is no Exception
        print(traceback.format_exc(), file=sys.stderr)
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    arrays: dict[str, Any] = {"y": found.y, "solved": found.solved, "warned": found.warned, **found.gradients}
    np.savez(Path(request["place"]), **arrays)
    return {"times": asdict(times), "warned": found.warned}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of the libraries, for their authors
    serve(partial(answer, sys.argv[1]))
