"""One trial of the sweep: a batch of random programs in random units, solved and differentiated in one way."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from declarative import DeclarativeNode, NumericalWarning, Status
from tests.support import exact, random_programs
from tests.support.random_programs import Program, Rng, Shape
from tests.support.reference import LONG, Reference, expand, nearest
from tests.support.rescaled import Units, rescaled_node

Array = NDArray[np.floating]
SHAPES = [
    *(
        Shape(m, p, q, False)
        for m, p, q in [(1, 0, 2), (2, 1, 2), (3, 0, 4), (3, 1, 3), (4, 2, 2), (4, 0, 6), (3, 0, 0)]
    ),
    *(
        Shape(m, p, q, True)
        for m, p, q in [(1, 0, 0), (2, 0, 2), (2, 1, 0), (3, 1, 2), (3, 2, 3), (4, 0, 0), (2, 2, 1)]
    ),
]
MAKERS: dict[bool, dict[Callable[[Rng, Shape], Program], float]] = {
    False: {
        random_programs.convex: 0.5,
        random_programs.on_a_grid: 0.25,
        random_programs.falling: 0.15,
        random_programs.contradictory: 0.1,
    },
    True: {random_programs.smooth: 0.85, random_programs.decaying: 0.15},
}
WAYS = {"default": 0.3, "newton": 0.25, "closed form": 0.15, "closed form, moved": 0.2, "closed form, stationary": 0.1}
RECORDED = [SHAPES[3], SHAPES[10]]  # recording takes a while for each shape, and each size of the batch
RECORDED_SIZE = 4


@dataclass(frozen=True)
class Trial:
    seed: int
    index: int
    dtype: torch.dtype
    way: str
    record: bool
    programs: tuple[Program, ...]  # one for each problem of the batch
    units: Units
    guesses: Tensor  # (batch, m), in the units of u
    v: Array  # the incoming gradient, in the units of u, (batch, m)

    @property
    def solver(self) -> str | None:
        return None if self.way == "default" else self.way.split(",")[0]

    def inputs(self) -> list[Tensor]:
        """x, the data and the guesses."""
        columns = zip(*((one.x, *one.data) for one in self.programs), strict=True)
        stacked = [torch.from_numpy(np.stack(column)).to(self.dtype) for column in columns]
        return [*stacked, self.guesses]

    def only(self, row: int) -> Trial:
        """One problem of the batch, alone."""
        part = slice(row, row + 1)
        units = Units(*(unit[part] for unit in self.units.tensors()))
        changed = {"units": units, "guesses": self.guesses[part], "v": self.v[part]}
        return Trial(**{**vars(self), **changed, "programs": self.programs[part]})


@dataclass(frozen=True)
class Outcome:
    status: list[Status]
    u: Array  # in the units of u, (batch, m)
    multipliers: Array  # in the units of f and c, L = f - multipliers' c, (batch, k)
    gradient: Array  # of v'u with respect to x, (batch, n)
    words: list[str]  # of warning, other than that problems were not solved


@functools.lru_cache(maxsize=200)
def node(shape: Shape, solver: str | None, record: bool) -> DeclarativeNode:
    """The same node serves all trials of a kind, so that what is recorded is replayed."""
    closed = solver == "closed form"
    return rescaled_node(
        *shape.functions(),
        solver=(lambda *xs: xs[-1]) if closed else solver,
        start=None if closed else lambda *xs: xs[-1],
        in_dims=(0,) * (14 if shape.curved else 7),
        on_failure="mask",
        record=record,
    )


def run(trial: Trial) -> Outcome:
    """Solve and differentiate."""
    xs = trial.inputs()
    xs[0].requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = node(trial.programs[0].shape, trial.solver, trial.record).solve(*xs, *trial.units.tensors())
        u = trial.units.to_u(solution.y)
        (gradient,) = torch.autograd.grad((torch.from_numpy(trial.v).to(u.dtype) * u).sum(), xs[0])
    words = [str(w.message) for w in caught if issubclass(w.category, NumericalWarning)]
    stacked = torch.cat([solution.multipliers, -solution.inequality_multipliers], -1).detach().numpy().astype(LONG)
    rows = torch.cat([trial.units.equality, trial.units.inequality], -1).numpy().astype(LONG)
    unit, shift = trial.units.unknowns.numpy().astype(LONG), trial.units.shift.numpy().astype(LONG)
    return Outcome(
        solution.status,
        unit * solution.y.detach().numpy().astype(LONG) + shift,
        stacked * rows / trial.units.objective.numpy().astype(LONG)[:, None],
        gradient.numpy().astype(LONG),
        [word for word in words if "were not solved" not in word],
    )


# Drawing


def draw(seed: int, index: int) -> Trial:
    """The trial with this number: the same in every run."""
    rng = np.random.default_rng([seed, index])
    dtype = torch.float64 if rng.uniform() < 0.6 else torch.float32
    record = bool(rng.uniform() < 0.1)
    table = RECORDED if record else SHAPES
    shape = table[rng.integers(len(table))]
    way = str(rng.choice(list(WAYS), p=list(WAYS.values())))
    way = "default" if record and way == "newton" else way
    size = RECORDED_SIZE if record else int(rng.integers(1, 9))
    different = [_program(rng, shape, dtype) for _ in range(1 + size // 3)]
    programs = tuple(different[i % len(different)] for i in range(size))
    of_program = {id(one): rng.normal(size=shape.m) for one in different}
    units = [_units(rng, shape, dtype, given=i < len(different)) for i in range(size)]
    stacked = Units(*(torch.stack(parts) for parts in zip(*units, strict=True)))
    guesses = torch.from_numpy(np.stack([_guess(rng, one, way) for one in programs])).to(dtype)
    v = np.stack([of_program[id(one)] for one in programs])
    return Trial(seed, index, dtype, way, record, programs, stacked, guesses, v)


def _program(rng: Rng, shape: Shape, dtype: torch.dtype) -> Program:
    makers = MAKERS[shape.curved]
    maker = list(makers)[int(rng.choice(len(makers), p=list(makers.values())))]
    if maker is random_programs.contradictory and shape.p + shape.q < 2:
        maker = random_programs.convex
    if maker is random_programs.decaying and shape.p >= shape.m:
        maker = random_programs.smooth
    program = maker(rng, shape)
    return program.in_single() if dtype == torch.float32 else program


def _units(rng: Rng, shape: Shape, dtype: torch.dtype, given: bool) -> tuple[Tensor, ...]:
    """f, the rows and u in other units, one of them or all; a constant on f; u counted from elsewhere."""
    m, p, q = shape.m, shape.p, shape.q
    changed = {"nothing"} if given else {str(rng.choice(["f", "rows", "u", "constant", "shift", "all"]))}
    if "all" in changed:
        changed = {"f", "rows", "u", "constant"}

    def factors(what: str, count: int) -> Array:
        own = 10.0 ** rng.uniform(-8, 8, size=count if rng.uniform() < 0.7 else 1)
        return np.broadcast_to(own, count) if what in changed else np.ones(count)

    objective, rows, unknowns = factors("f", 1), factors("rows", p + q), factors("u", m)
    constant = objective * rng.choice([-1, 1]) * 10.0 ** rng.uniform(0, 8) if "constant" in changed else np.zeros(1)
    reach = 4.0 if dtype == torch.float64 else 1.5
    shift = rng.choice([-1, 1], size=m) * 10.0 ** rng.uniform(0, reach, size=m) if "shift" in changed else np.zeros(m)
    parts = (objective[0], constant[0], rows[:p], rows[p:], unknowns, shift)
    return tuple(torch.tensor(np.array(part), dtype=dtype) for part in parts)


def _guess(rng: Rng, program: Program, way: str) -> Array:
    """Where to start, or what a closed form returns: a solution, one that was moved, or any stationary point."""
    near = program.inside + rng.normal(size=program.shape.m) * 10.0 ** rng.uniform(-1, 0.3)
    if not way.startswith("closed form") or not program.solvable:
        return near
    found = nearest(program, near) if "stationary" in way else solution_of(program)
    if found is None:
        return near
    away = rng.normal(size=len(near)) * 10.0 ** rng.uniform(-7, 0) * (rng.uniform(size=len(near)) < 0.5)
    return (found.u + (away if "moved" in way else 0)).astype(np.float64)


# Solving, independently


@functools.lru_cache(maxsize=64)
def solution_of(program: Program) -> Reference | None:
    """The solution of a convex quadratic program, in rational arithmetic; one of a smooth program, by SciPy."""
    if not program.shape.curved:
        found = enumerated(program, np.ones(program.shape.m))
        return None if found is None else nearest(program, found.y)

    def at(u: Array) -> tuple[Array, Array]:
        here = expand(program, program.x.astype(LONG), u.astype(LONG), np.abs(u))
        return here.values.astype(np.float64), here.slopes.astype(np.float64)

    p = program.shape.p
    kinds = [("eq", slice(1, 1 + p), 1.0)] if p else []
    kinds += [("ineq", slice(1 + p, None), -1.0)] if program.shape.q else []
    constraints = [
        {"type": kind, "fun": lambda u, r=r, s=s: s * at(u)[0][r], "jac": lambda u, r=r, s=s: s * at(u)[1][r]}
        for kind, r, s in kinds
    ]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = minimize(
            lambda u: at(u)[0][0], program.inside, jac=lambda u: at(u)[1][0], method="SLSQP", constraints=constraints
        )
    return nearest(program, found.x) if np.isfinite(found.x).all() else None


def enumerated(program: Program, v: Array) -> exact.Exact | None:
    """A quadratic program solved by trying all active sets."""
    P, a = program.data[:2]
    m, first = program.shape.m, 1 + program.shape.p
    q, b, h = np.split(program.x, [m, m + program.shape.p])
    return exact.solve(P[0], q, a[1:first], b, a[first:], h, np.asarray(v, dtype=np.float64))
