"""The truths of the families, each proved in a process of its own and kept in a file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from .cases import Case
from .conditions import NoTruthError
from .digests import HERE, TRUTH, code_digest, digest
from .families import FAMILIES, Family
from .forked import run_forked
from .truth import Truth, truth

SECONDS = 120.0  # of the processor, for a truth
SEEDS = 20  # to be tried until every problem of a batch has a gradient


@lru_cache(maxsize=2)
def case_of(family: str, size: int, batch: int, seed: int) -> Case:
    """The problems."""
    return FAMILIES[family].make(size, batch, seed)


@lru_cache(maxsize=2)
def known_truth(family: str, size: int, batch: int, place: Path) -> tuple[int, Truth]:
    """The first seed for which every problem of the batch has a gradient, and the truth, which is kept in a file.

    Raises:
        NoTruthError: there is none.
    """
    path = place / "truth" / f"{family}-{size}-{batch}.npz"
    reason = ""
    for seed in range(SEEDS):
        case = case_of(family, size, batch, seed)
        of = truth_digest(case, FAMILIES[family])
        if (found := _load(path, case, of)) is not None:
            return seed, found
        path.parent.mkdir(parents=True, exist_ok=True)
        outcome = run_forked(partial(_prove, case, of, path), SECONDS)
        if (found := _load(path, case, of)) is not None:
            return seed, found
        reason = str(outcome.get("not") or outcome.get("error") or "it takes too long")
        if "timeout" in outcome:
            break
    raise NoTruthError(reason)


def _prove(case: Case, of: str, path: Path) -> dict[str, Any]:
    """In a process of its own: the file is the answer."""
    try:
        found = truth(case)
    except NoTruthError as reason:
        return {"not": str(reason)}
    arrays: dict[str, Any] = {"of": of, "y": found.y, **found.gradients}
    beside = path.with_suffix(".part.npz")
    np.savez(beside, **arrays)
    beside.replace(path)
    return {}


def _load(path: Path, case: Case, of: str) -> Truth | None:
    if not path.exists():
        return None
    with np.load(path) as data:
        if str(data["of"]) != of:
            return None
        return Truth(data["y"], {name: data[name] for name in case.inputs})


def truth_digest(case: Case, family: Family) -> str:
    """Of all that a truth depends on: every number of the problems, their formulas, and how it is computed."""
    code = code_digest(family.source, *(HERE / name for name in TRUTH))
    return digest([code.encode(), *_numbers(case.statement), *_numbers(case.inputs), case.cotangent.tobytes()])


def _numbers(thing: Any) -> Iterator[bytes]:
    """All arrays of a statement; formulas are code."""
    values = (
        thing.values() if isinstance(thing, dict) else (getattr(thing, name) for name in thing.__dataclass_fields__)
    )
    for value in values:
        if scipy.sparse.issparse(value):
            coo = value.tocoo()
            for part in (coo.row, coo.col, coo.data):
                yield np.ascontiguousarray(part).tobytes()
        elif not callable(value):
            yield np.ascontiguousarray(value).tobytes()
