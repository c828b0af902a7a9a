"""What a careless caller may pass, and what may come of it."""

from __future__ import annotations

import linecache
import math
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import declarative
import problems
from declarative import SolverError

OWN = tuple(str(Path(module.__file__).parent) for module in (declarative, problems))
HUGE = (1 << 20, 1 << 20, 1 << 10, 1)  # of a tensor with one number in memory


def quantised() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is going to drop it
        return torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8)


def odd_objects() -> dict[str, Any]:
    """Things that are no tensors."""
    return {
        "None": None,
        "text": "text",
        "bytes": b"3",
        "int": 3,
        "negative": -1,
        "zero": 0,
        "float": 2.5,
        "nan": math.nan,
        "inf": math.inf,
        "bool": True,
        "complex number": 1j,
        "list": [1.0],
        "nested list": [[1.0], [2.0, 3.0]],
        "empty list": [],
        "tuple": (1, 2),
        "dict": {"x": 1},
        "set": {1},
        "object": object(),
        "class": int,
        "module": torch.nn.Identity(),
        "array": np.ones((2, 3)),
        "huge int": 10**30,
    }


def odd_tensors(like: Tensor) -> dict[str, Tensor]:
    """Tensors that are not what this one is."""
    plain = like.detach()
    return {
        "scalar": torch.tensor(1.0),
        "int64": plain.long(),
        "uint8": plain.abs().to(torch.uint8),
        "bool": plain > 0,
        "complex": plain.to(torch.complex64),
        "float16": plain.half(),
        "bfloat16": plain.bfloat16(),
        "float8": plain.float().to(torch.float8_e4m3fn),
        "sparse": plain.to_sparse(),
        "quantised": quantised(),
        "meta": plain.to("meta"),
        "no problems": plain[:0],
        "no entries": plain[..., :0],
        "no batch": plain[0] if plain.dim() else plain,
        "one dimension more": plain.unsqueeze(-1),
        "two dimensions more": plain[None, None],
        "one problem more": torch.cat([plain, plain[:1]]) if plain.dim() else plain,
        "one entry more": torch.cat([plain, plain[..., :1]], -1) if plain.dim() else plain,
        "transposed": plain.mT.contiguous() if plain.dim() > 1 else plain,
        "huge": torch.zeros((), dtype=plain.dtype).expand(HUGE),
        "not a number": torch.full_like(plain, math.nan),
        "infinite": torch.full_like(plain, math.inf),
        "zeros": torch.zeros_like(plain),
        "largest": torch.full_like(plain, torch.finfo(plain.dtype).max),
        "smallest": torch.full_like(plain, torch.finfo(plain.dtype).tiny / 4),
        "negative": -plain.abs() - 1,
    }


@dataclass(frozen=True)
class Outcome:
    """How a call ended: ``None`` if it is among what is documented, and otherwise what was wrong with it."""

    fault: str | None
    returned: bool


def attempt(call: Callable[[], Any]) -> Outcome:
    """Call, and judge by the class of what was raised and by who raised it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = call()
        except Exception as error:
            return Outcome(judge(error), False)
    return Outcome(_silent_nan(value), True)


def judge(error: Exception) -> str | None:
    """What is wrong with an exception, if anything."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    told = f"{type(error).__name__}: {str(error)[:110]} ({Path(frame.filename).name}:{frame.lineno})".replace("\n", " ")
    if any("This happened in" in note or " was called with " in note for note in getattr(error, "__notes__", ())):
        return None  # the caller's own function, with a note of what it was called with
    names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
    if {"points", "_called_start", "_nesting_of_start"} & set(names) and not isinstance(error, TypeError):
        return None  # the caller's own formula or start
    signature = isinstance(error, TypeError) and ("argument" in str(error) or "abstract" in str(error))
    if signature and (not frame.filename.startswith(OWN) or names[-1] == "points"):
        return None  # Python's word on a signature
    if not isinstance(error, TypeError | ValueError | SolverError):
        return told
    statement = linecache.getline(frame.filename, frame.lineno).strip()
    if not frame.filename.startswith(OWN) or not statement.startswith("raise "):
        return told
    return None if len(str(error).split()) >= 4 else f"unhelpful {told}"


def _silent_nan(value: Any) -> str | None:
    if isinstance(value, Tensor) and value.is_floating_point() and not value.is_meta and value.isnan().any():
        return "returned NaN without a word"
    return None
