"""Optimal control: a trajectory and its controls, from the functions of one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from declarative.structure import Layouts, Structure

from .inputs import require_count
from .layer import Layer, Options

StepFunction = Callable[..., Tensor]  # (x, u, *parameters) of one step
EndFunction = Callable[..., Tensor]  # (x, *parameters) of the last state
Trajectory = dict[str, Tensor]  # states (steps, n) and controls (steps, controls)
LONG = 100  # steps, from which dense matrices are no alternative to sparse ones


class OptimalControl(Layer):
    """The cheapest trajectory from a given state, over a horizon of T steps:

        minimise    sum_t cost(x_t, u_t)  +  end_cost(x_T)
        subject to  x_t+1 = step(x_t, u_t)       t = 0 ... T - 1
                    inequality(x_t+1, u_t) <= 0
                    end_equality(x_T) = 0
                    bounds on states and controls

    All states and controls are unknowns, and the steps are equalities: a trajectory need not be simulated from its
    beginning to be improved, and unstable systems are as good as others. H and A are sparse, and the work is in
    proportion to T. The functions are written for one step of one problem. Each may be an ``nn.Module``, such as a
    network that models the dynamics, whose parameters then get gradients.

    Shapes: initial state (batch, n), parameters -> {"states": (batch, T, n), "controls": (batch, T, controls)}, where
    states[:, t] is the state after controls[:, t]; the initial state is not repeated.

    Args:
        step: ``(x, u, *parameters)`` -> the next x, (n,).
        cost: ``(x, u, *parameters)`` -> a scalar.
        end_cost: ``(x, *parameters)`` -> a scalar.
        steps: T.
        controls: how many there are in a step.
        inequality: ``(x, u, *parameters)`` -> a vector or a scalar that must not be positive, for the state after each
            step and the control that led to it.
        end_equality: ``(x, *parameters)`` -> a vector or a scalar that is zero for the last state.
        state_bounds: ``(lower, upper)`` of the states: each a number, a tensor that fits (T, n), None, or a function of
            (initial state, *parameters), in which it is then differentiable.
        control_bounds: likewise, of the controls.
        per_step: which of the parameters, by their numbers from 0, have an entry for each step: their first dimension
            (after that of the batch) is T. The functions of the last state get the last entry.
        in_dims: which dimension of the initial state and of each parameter is the batch, as in
            :class:`DeclarativeNode`; None for what all problems share.
        structure: as in :class:`DeclarativeNode`; sparse by default, chosen by the size for a short horizon.
        record: as in :class:`DeclarativeNode`: True for many calls with the same shapes.
        **options: see :class:`Layer`.

    The search starts at the initial state, repeated, with controls of zero; ``layer(x, start=...)`` takes any other
    trajectory, such as the last one. Where the problem is not convex, the solution is a local one.

    Example:
        >>> import torch
        >>> from problems import OptimalControl
        >>> layer = OptimalControl(
        ...     lambda x, u, mass: torch.stack([x[0] + 0.5 * x[1], x[1] + 0.5 * u[0] / mass]),
        ...     lambda x, u, mass: x.square().sum() + 0.1 * u.square().sum(),
        ...     steps=5, controls=1, control_bounds=(-1.0, 1.0), in_dims=(0, None),
        ... )
        >>> mass = torch.tensor(1.0, requires_grad=True)
        >>> y = layer(torch.tensor([[1.0, 0.0]]), mass)
        >>> y["controls"].detach().squeeze(-1).round(decimals=4)
        tensor([[-1.0000,  0.1443,  0.4019,  0.3241,  0.0000]])
        >>> torch.autograd.grad(y["states"][0, -1, 0], mass)[0]
        tensor(0.1487)
    """

    def __init__(
        self,
        step: StepFunction,
        cost: StepFunction,
        end_cost: EndFunction | None = None,
        *,
        steps: int,
        controls: int,
        inequality: StepFunction | None = None,
        end_equality: EndFunction | None = None,
        state_bounds: Sequence[Any] | None = None,
        control_bounds: Sequence[Any] | None = None,
        per_step: Sequence[int] = (),
        in_dims: int | Sequence[int | None] | None = 0,
        structure: Structure | None = None,
        record: bool | Literal["inductor"] = False,
        **options: Unpack[Options],
    ) -> None:
        require_count(steps=steps, controls=controls)
        functions = {"step": step, "cost": cost, "end_cost": end_cost}
        constraints = {"inequality": inequality, "end_equality": end_equality}
        horizon = Horizon(int(steps), int(controls), _numbers(per_step), **functions, **constraints)
        super().__init__(
            horizon.total_cost,
            horizon.equations,
            None if inequality is None else horizon.limits,
            bounds=_joined_bounds(state_bounds, control_bounds),
            start=horizon.start,
            in_dims=in_dims,
            structure=("sparse" if steps >= LONG else "auto") if structure is None else structure,
            record=record,
            **options,
        )

    def generic(self) -> OptimalControl:
        """The same problem with dense matrices."""
        return self.with_plan(structure="dense", layouts=Layouts(), recordings=None, sizes=None)


class Horizon(nn.Module):
    """The functions of one step as functions of (initial state, *parameters, trajectory): a module, as they may be."""

    def __init__(
        self, steps: int, controls: int, per_step: tuple[int, ...], **functions: Callable[..., Tensor] | None
    ) -> None:
        super().__init__()
        self.steps, self.controls, self.per_step = steps, controls, per_step
        for name, function in functions.items():
            if not callable(function) and (function is not None or name in ("step", "cost")):
                raise TypeError(f"{name} must be a function of one step, but is {type(function).__name__}.")
            setattr(self, name, function)

    def start(self, initial: Tensor, *parameters: Tensor) -> Trajectory:  # noqa: ARG002
        """The initial state, repeated."""
        if initial.dim() != 1:
            raise ValueError(
                f"the initial state must be a vector for each problem, (batch, n), but one has shape "
                f"{tuple(initial.shape)}."
            )
        return {"states": initial.expand(self.steps, -1), "controls": initial.new_zeros(self.steps, self.controls)}

    def total_cost(self, initial: Tensor, *rest: Any) -> Tensor:
        *parameters, y = rest
        total: Tensor = self._over_steps(self.cost, _before(initial, y), y, parameters).sum()
        return total if self.end_cost is None else total + self.end_cost(y["states"][-1], *self._last(parameters))

    def equations(self, initial: Tensor, *rest: Any) -> Tensor | dict[str, Tensor]:
        *parameters, y = rest
        after = self._over_steps(self.step, _before(initial, y), y, parameters)
        if after.shape != y["states"].shape:
            wanted, found = tuple(initial.shape), tuple(after.shape[1:])
            raise ValueError(f"step must return the next state, of shape {wanted}, but returned {found}.")
        rows = {"steps": y["states"] - after}
        if self.end_equality is not None:
            rows["end"] = self.end_equality(y["states"][-1], *self._last(parameters))
        return rows

    def limits(self, initial: Tensor, *rest: Any) -> dict[str, Tensor]:  # noqa: ARG002
        *parameters, y = rest
        return {"steps": self._over_steps(self.inequality, y["states"], y, parameters)}

    def _over_steps(self, function: Any, states: Tensor, y: Trajectory, parameters: Sequence[Tensor]) -> Tensor:
        """A function of one step for all of them."""
        if self.per_step and max(self.per_step) >= len(parameters):
            raise ValueError(f"per_step names parameter {max(self.per_step)}, but there are {len(parameters)}, from 0.")
        dims = [0 if i in self.per_step else None for i in range(len(parameters))]
        found: Tensor = torch.vmap(function, in_dims=(0, 0, *dims))(states, y["controls"], *parameters)
        return found

    def _last(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return [x[-1] if i in self.per_step else x for i, x in enumerate(parameters)]


def _numbers(per_step: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(per_step, tuple | list) or not all(isinstance(i, int) and i >= 0 for i in per_step):
        raise TypeError(f"per_step must be a list of the numbers of parameters, from 0, but is {per_step!r}.")
    return tuple(per_step)


def _before(initial: Tensor, y: Trajectory) -> Tensor:
    """The states before each step."""
    return torch.cat([initial.unsqueeze(0), y["states"][:-1]])


def _joined_bounds(states: Sequence[Any] | None, controls: Sequence[Any] | None) -> tuple[Any, Any] | None:
    """Bounds of states and controls as those of all unknowns."""
    pairs = {"state_bounds": states, "control_bounds": controls}
    for name, pair in pairs.items():
        if pair is not None and (not isinstance(pair, tuple | list) or len(pair) != 2):
            raise TypeError(f"{name} must be a pair (lower, upper), but is {pair!r}.")
    if states is None and controls is None:
        return None
    lower, upper = zip(states or (None, None), controls or (None, None), strict=True)
    return _one_side(*lower), _one_side(*upper)


def _one_side(states: Any, controls: Any) -> Any:
    if states is None and controls is None:
        return None
    if not (callable(states) or callable(controls)):
        return {"states": states, "controls": controls}

    def of_inputs(*xs: Tensor) -> dict[str, Any]:
        return {name: side(*xs) if callable(side) else side for name, side in parts.items()}

    parts = {"states": states, "controls": controls}
    return of_inputs
