"""The process of a library: it imports the library once, and splits off a process for every cell that it is asked for.

Requests come as lines of JSON, and so do the answers. A cell that takes too long, or that ends its process, is told as
such: neither hurts the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from .cases import DoesNotApplyError
from .families import FAMILIES
from .libraries import LIBRARIES
from .measure import as_record, in_use, measure

ROOM = 4 * 2**30  # bytes that a cell may take: unrolled loops take what they get
TWICE, PATIENCE = 2.2, 8  # times the limit: processor time of a cell, and time on the wall, as others use the machine
PAUSE = 0.1  # seconds between two looks


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
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w") as pipe:
                json.dump(cell(name, request), pipe)
        finally:
            os._exit(0)  # never back into the loop of the process that it was split off from
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ready = _in_time(pipe, child, request["limit"])
        if not ready:
            os.kill(child, signal.SIGKILL)
        text = pipe.read() if ready else ""
    _, status = os.waitpid(child, 0)
    if text:
        found: dict[str, Any] = json.loads(text)
        return found
    return {"error": f"its process has ended, status {status}"} if ready else {"timeout": request["limit"]}


def _in_time(pipe: Any, child: int, limit: float) -> bool:
    """Does it answer before it has used twice the time of the first call's limit, and PATIENCE times that on the wall?

    The kernel's own limit of processor time is no use: under it, that time is counted in steps of milliseconds.
    """
    began = time.monotonic()
    while not select.select([pipe], [], [], PAUSE)[0]:
        if time.monotonic() - began > PATIENCE * limit or _spent(child) > TWICE * limit:
            return False
    return True


def _spent(child: int) -> float:
    """Seconds of the processor; zero where the system does not tell."""
    path = Path(f"/proc/{child}/stat")
    if not path.exists():
        return 0.0
    numbers = path.read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


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
    arrays: dict[str, Any] = {"y": answer.y, "solved": answer.solved, **answer.gradients}
    np.savez(Path(request["place"]), **arrays)
    return {"times": as_record(times)}


if __name__ == "__main__":
    serve(sys.argv[1])
