"""The kinds of instructions, what each computes, and the kernel that carries them out, which is made of that."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...linear.jit import inlined, inner
from ...linear.simd import load, store

(
    ADD, SUB, MUL, DIV, NEG, MAXIMUM, MINIMUM, POW, ATAN2, WHERE,
    LT, LE, EQ, NOT, AND, OR, ISFINITE, ISNAN,
    ABS, SIGN, SQRT, EXP, EXPM1, LOG, LOG1P, SIN, COS, TAN, ASIN, ACOS, ATAN,
    SINH, COSH, TANH, ASINH, ACOSH, ATANH, ERF, FLOOR, CEIL, READ, SOLVED,
) = range(42)  # fmt: skip

# What an instruction computes of its operands: of a row of lanes at once, or lane by lane, and what is rarely needed by
# one loop for all of it, which takes half as long to compile.
OF_ROWS = {ADD: "{a} + {b}", SUB: "{a} - {b}", MUL: "{a} * {b}", DIV: "{a} / {b}"}
OF_NUMBERS = {
    NEG: "-{a}",
    WHERE: "{b} if {a} != 0.0 else {c}",
    SIN: "math.sin({a})",
    COS: "math.cos({a})",
    EXP: "np.exp({a})",
    LOG: "np.log({a})",
    SQRT: "np.sqrt({a})",
    ABS: "abs({a})",
    MAXIMUM: "{a} if ({a} > {b}) | ({a} != {a}) else {b}",  # what is not a number stays it, on either side
    MINIMUM: "{a} if ({a} < {b}) | ({a} != {a}) else {b}",
    LT: "1.0 if {a} < {b} else 0.0",
    LE: "1.0 if {a} <= {b} else 0.0",
    EQ: "1.0 if {a} == {b} else 0.0",
    AND: "1.0 if ({a} != 0.0) & ({b} != 0.0) else 0.0",
    OR: "1.0 if ({a} != 0.0) | ({b} != 0.0) else 0.0",
    NOT: "1.0 if {a} == 0.0 else 0.0",
    ISNAN: "1.0 if {a} != {a} else 0.0",
    POW: "{a} ** {b}",
    ATAN2: "math.atan2({a}, {b})",
}
RARE = {
    ISFINITE: "1.0 if np.isfinite({a}) else 0.0",
    SIGN: "(1.0 if {a} > 0 else 0.0) - (1.0 if {a} < 0 else 0.0)",
    FLOOR: "np.floor({a})",
    CEIL: "np.ceil({a})",
    EXPM1: "np.expm1({a})",
    LOG1P: "np.log1p({a})",
    TAN: "np.tan({a})",
    ASIN: "np.arcsin({a})",
    ACOS: "np.arccos({a})",
    ATAN: "np.arctan({a})",
    SINH: "np.sinh({a})",
    COSH: "np.cosh({a})",
    TANH: "np.tanh({a})",
    ASINH: "np.arcsinh({a})",
    ACOSH: "np.arccosh({a})",
    ATANH: "np.arctanh({a})",
    ERF: "math.erf({a})",
}
PERFORM = """
def rare(kind, a):
    {returns}
    return math.nan

def perform(program, r, first, last, lanes):
    kinds, ends, A, B, C, D = program.kinds, program.ends, program.a, program.b, program.c, program.d
    k = ends[first - 1] if first else 0
    for n in range(first, last):
        kind, end = kinds[n], ends[n]
        {branches}
        else: {others}
        k = end
"""
LOOP_OF_ROWS = """
            for i in range(k, end):
                store(r, D[i], {formula}, lanes)
"""
LOOP_OF_NUMBERS = """
            for i in range(k, end):
                {places} = {registers}
                for j in range(lanes):
                    r[d + j] = {formula}
"""


def _generate_perform() -> Any:
    """The kernel ``perform(program, r, first, last, lanes)`` for some of the runs, with a loop for each kind."""
    rows = {x: f"load(r, {x.upper()}[i], lanes)" for x in "ab"}
    loops = {kind: LOOP_OF_ROWS.format(formula=formula.format(**rows)) for kind, formula in OF_ROWS.items()}
    loops |= {kind: _loop_of_numbers(formula) for kind, formula in OF_NUMBERS.items()}
    source = PERFORM.format(
        returns="\n    ".join(f"if kind == {kind}: return {formula.format(a='a')}" for kind, formula in RARE.items()),
        branches="\n        el".join(f"if kind == {kind}: {loop}" for kind, loop in loops.items()),
        others=_loop_of_numbers("rare(kind, {a})"),
    )
    scope: dict[str, Any] = {"math": math, "np": np, "load": load, "store": store}
    exec(source, scope)
    scope["rare"] = inner(scope["rare"])
    return inlined(scope["perform"])


def _loop_of_numbers(formula: str) -> str:
    used = [x for x in "abc" if f"{{{x}}}" in formula] + ["d"]
    return LOOP_OF_NUMBERS.format(
        places=", ".join(used),
        registers=", ".join(f"{x.upper()}[i] * lanes" for x in used),
        formula=formula.format(**{x: f"r[{x} + j]" for x in used}),
    )


perform = _generate_perform()
