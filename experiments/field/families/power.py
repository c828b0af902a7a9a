"""Small optimal power flow: a ring of buses with chords, by formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cases import Array, Case, Functions, Programme
from .family import Family, generator

VOLTAGE = (0.94, 1.06)
LIMIT = 1.2  # of the power that a line takes in


@dataclass(frozen=True)
class Grid:
    """Lines as rows of matrices that pick their ends; every third bus has a generator."""

    buses: int
    origin: Array  # (lines, buses)
    end: Array  # (lines, buses)
    conductance: Array
    susceptance: Array
    supply: Array  # (buses, generators)
    price: Array  # of the power of a generator, and half of that of its square

    @classmethod
    def ring(cls, buses: int) -> Grid:
        """With a chord from every second bus to the one three further on."""
        draw = generator("grid", buses, 1, 0)
        pairs = [(i, (i + 1) % buses) for i in range(buses)]
        pairs += [(i, (i + 3) % buses) for i in range(0, buses, 2) if buses > 6]
        origin, end = (np.eye(buses)[[pair[side] for pair in pairs]] for side in (0, 1))
        resistance, reactance = draw.uniform(0.01, 0.03, len(pairs)), draw.uniform(0.08, 0.2, len(pairs))
        square = resistance**2 + reactance**2
        generators = range(0, buses, 3)
        price = draw.uniform(1.0, 2.0, len(generators))
        return cls(buses, origin, end, resistance / square, -reactance / square, np.eye(buses)[:, generators], price)

    def functions(self, m: Any) -> Functions:
        """Of the loads p (active, then reactive) and of u: voltages, angles but the first, both kinds of supply."""
        n, count = self.buses, self.supply.shape[1]
        origin, end, supply = (m.array(x) for x in (self.origin, self.end, self.supply))
        differences, after = m.array((self.origin - self.end)[:, 1:]), 2 * n - 1
        to_origin, to_end = m.array(self.origin.T), m.array(self.end.T)
        g, b, price = (m.array(x) for x in (self.conductance, self.susceptance, self.price))

        def flows(u: Any) -> tuple[Any, ...]:
            one, two, turn = m.times(origin, u[:n]), m.times(end, u[:n]), m.times(differences, u[n:after])
            c, s = one * two * m.cos(turn), one * two * m.sin(turn)
            return (
                g * one * one - g * c - b * s,
                -b * one * one + b * c - g * s,
                g * two * two - g * c + b * s,
                -b * two * two + b * c + g * s,
            )

        def objective(p: Any, u: Any) -> Any:  # noqa: ARG001
            power = u[after : after + count]
            return m.total(price * (power + power * power / 2)) + 0.1 * m.total((u[:n] - 1) ** 2)

        def equality(p: Any, u: Any) -> Any:
            active, reactive, back, reactive_back = flows(u)
            first = m.times(to_origin, active) + m.times(to_end, back) + p[:n]
            second = m.times(to_origin, reactive) + m.times(to_end, reactive_back) + p[n : 2 * n]
            supplied = m.times(supply, u[after : after + count]), m.times(supply, u[after + count :])
            return m.concat([first - supplied[0], second - supplied[1]])

        def inequality(p: Any, u: Any) -> Any:  # noqa: ARG001
            active, reactive, _, _ = flows(u)
            return active * active + reactive * reactive - LIMIT**2

        return Functions(objective, equality, inequality)


def power(size: int, batch: int, seed: int) -> Case:
    """Random loads; the first bus has angle zero."""
    grid = Grid.ring(size)
    count = grid.supply.shape[1]
    draw = generator("power", size, batch, seed)
    loads = np.concatenate([draw.uniform(0.1, 0.5, (batch, size)), draw.uniform(0.0, 0.15, (batch, size))], 1)
    low, high = VOLTAGE
    lower = np.r_[np.full(size, low), np.full(size - 1, -np.pi / 2), np.zeros(count), np.full(count, -1.0)]
    upper = np.r_[np.full(size, high), np.full(size - 1, np.pi / 2), np.full(count, 2.0), np.full(count, 1.0)]
    start = np.tile(np.r_[np.ones(size), np.zeros(size - 1), np.full(count, 0.5), np.zeros(count)], (batch, 1))
    programme = Programme(grid.functions, loads, start, lower, upper)
    return Case(programme, {"p": loads}, draw.standard_normal(start.shape))


FAMILIES = (
    Family(
        "power-flow", "Optimal power flow", "nonlinear", "buses",
        "Alternating current on a ring with chords, limits of lines and voltages; the gradient in all loads; truth: "
        "Newton's method on the optimality conditions with CasADi's derivatives, to rounding.",
        power, ((5, 1), (5, 32), (14, 1), (14, 32), (30, 1)), ((4, 2),),
    ),
)  # fmt: skip
