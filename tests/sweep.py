"""A random sweep that looks for silently wrong results: ``python -m tests.sweep --minutes 10 --seed 0``.

Quadratic programs are compared with the enumeration of active sets in rational arithmetic, nonlinear ones with finite
differences of an independent solver; each in many units, with a constant on the objective, counted from elsewhere; in
single and double precision, called and recorded, solved or given by a formula that is right, nearly right or wrong.
CONVERGED has to mean a local minimum, to the accuracy stated in ``sweep_judge.py``, with the right multipliers and the
right gradient, or a word of warning. The run is the same for the same seed, except for how far it gets.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import torch

from tests.support import vanishing
from tests.support.sweep_judge import Result, Verdict, forget, judge
from tests.support.sweep_trials import Trial, draw, run

SHOWN = (Result.WRONG, Result.FALSE_CLAIM)


def describe(trial: Trial, verdict: Verdict) -> str:
    program, dtype = trial.programs[verdict.row], str(trial.dtype).removeprefix("torch.")
    called = "recorded" if trial.record else "called"
    return (
        f"{verdict.result.value}: {verdict.why}\n"
        f"  a {program.kind} program, {trial.way}, {dtype}, {called}, problem {verdict.row} of {len(trial.programs)}; "
        f"--seed {trial.seed} --trial {trial.index}"
    )


def script(trial: Trial, row: int) -> str:
    """A program that shows the problem, without the sweep; alone, if it goes wrong alone too."""
    alone = trial.only(row)
    if any(one.result in SHOWN for one in judge(alone, run(alone))):
        trial, row = alone, 0
    shape, closed = trial.programs[0].shape, trial.solver == "closed form"
    solver = "lambda *xs: xs[-1]" if closed else repr(trial.solver)
    data = ",\n    ".join(str(x.tolist()) for x in (*trial.inputs(), *trial.units.tensors()))
    return f"""\
import torch
from tests.support.random_programs import Shape
from tests.support.rescaled import rescaled_node, split

inputs = [torch.tensor(values, dtype={trial.dtype}) for values in [  # x, data, the guess; units of f, c and u
    {data},
]]
inputs[0].requires_grad_()
node = rescaled_node(
    *{shape}.functions(), in_dims=(0,) * {len(trial.inputs())}, on_failure="mask", record={trial.record},
    solver={solver}, start={None if closed else "lambda *xs: xs[-1]"},
)
solution = node.solve(*inputs)
u = split(inputs)[1].to_u(solution.y)
v = torch.tensor({trial.v.tolist()}, dtype={trial.dtype})
print(solution.status[{row}].name, u[{row}].tolist(), torch.autograd.grad((u * v).sum(), inputs[0])[0][{row}].tolist())
"""


def one_trial(seed: int, index: int, show: bool) -> Counter[tuple[str, str]]:
    """Run and judge it; print what is wrong with it."""
    trial = draw(seed, index)
    verdicts = judge(trial, run(trial))
    for verdict in verdicts:
        if show and verdict.result in SHOWN:
            print(describe(trial, verdict), script(trial, verdict.row), sep="\n", flush=True)
    forget()
    return Counter((trial.programs[one.row].kind, one.result.value) for one in verdicts)


def table(counts: Counter[tuple[str, str]]) -> str:
    kinds = sorted({kind for kind, _ in counts})
    lines = [f"{'':50}" + "".join(f"{kind:>15}" for kind in [*kinds, "all"])]
    for result in Result:
        row = [counts[kind, result.value] for kind in kinds]
        lines.append(f"{result.value:50}" + "".join(f"{count:15}" for count in [*row, sum(row)]))
    return "\n".join(lines)


def sweep_vanishing(seed: int, minutes: float) -> int:
    """Programs whose multipliers vanish, for so long."""
    counts: Counter[str] = Counter()
    index, end = 0, time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        found, words = vanishing.trial(seed, index)
        if found["WRONG"] or found["false alarm"]:
            print("WRONG" if found["WRONG"] else "false alarm", words, sep=": ", flush=True)
        counts, index = counts + found, index + 1
    print(f"seed {seed}: {dict(counts)}")
    return int(counts["WRONG"] > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description="Look for silently wrong results.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trial", type=int, help="run this one alone")
    parser.add_argument("--vanishing", action="store_true", help="programs whose multipliers vanish")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.vanishing:
        return sweep_vanishing(given.seed, given.minutes)
    counts: Counter[tuple[str, str]] = Counter()
    if given.trial is not None:
        counts = one_trial(given.seed, given.trial, show=True)
    index, end = 0, time.monotonic() + 60 * given.minutes
    while given.trial is None and time.monotonic() < end:
        counts += one_trial(given.seed, index, show=True)
        index += 1
    print(f"seed {given.seed}, {index or 1} trials, {sum(counts.values())} problems\n{table(counts)}")
    return int(any(result == Result.WRONG.value for _, result in counts))


if __name__ == "__main__":
    sys.exit(main())
