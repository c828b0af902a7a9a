"""The process of a library: it imports the library once, and splits off a process for every cell that it is asked for.

Requests come as lines of JSON, and so do the answers. A cell that takes too long, or that ends its process, is told as
such: neither hurts the next one.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .apart import apart
from .cases import DoesNotApplyError
from .families import FAMILIES
from .libraries import LIBRARIES
from .measure import as_record, in_use, measure

ROOM = 4 * 2**30  # bytes that a cell may take: unrolled loops take what they get


def serve(name: str) -> None:
    """Answer requests until the input ends."""
    library = LIBRARIES[name]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes elsewhere than the answers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, for their authors
        library.load()
        print(json.dumps({"ready": library.version}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(split_off(name, json.loads(line))), file=answers, flush=True)


def split_off(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a process of its own, or what became of it."""
    return apart(partial(cell, name, request), request["limit"])


def cell(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Measure, and leave the answer to be judged in the file that is named."""
    if size := in_use("VmSize"):
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, resource.RLIM_INFINITY))
    try:
        case = FAMILIES[request["family"]].make(request["size"], request["batch"], request["seed"])
        forward = LIBRARIES[name].build(case, request["variant"])
        times, answer = measure(forward, case, request["budget"], request["limit"])
    except DoesNotApplyError as reason:
        return {"not": str(reason)}
    except BaseException as error:  # whatever a library raises is its answer, and a panic in Rust is no Exception
        print(traceback.format_exc(), file=sys.stderr)
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    arrays: dict[str, Any] = {"y": answer.y, "solved": answer.solved, "warned": answer.warned, **answer.gradients}
    np.savez(Path(request["place"]), **arrays)
    return {"times": as_record(times), "warned": answer.warned}


if __name__ == "__main__":
    serve(sys.argv[1])
