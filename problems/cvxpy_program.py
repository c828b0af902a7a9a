"""Problems stated in CVXPY, as layers: CVXPY reduces them to cone programs once, and they are solved and differentiated
here.

CVXPY says how the cone program depends on the parameters: each entry of P, q, A and b is an affine function of them.
Nothing of CVXPY is used in a call.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from declarative import Solution

from .cone_program import ConeProgram
from .cones import Cones
from .cones.semidefinite import matrices
from .layer import Options

OLDEST = 1, 9  # the version of CVXPY from which on the reductions tell what became of a variable
ITERATION_ARGUMENTS = ("max_iters", "max_iter")  # what solvers of others call the number of iterations


def from_cvxpy(
    problem: Any,
    parameters: Sequence[Any],
    variables: Sequence[Any],
    *,
    gp: bool = False,
    **options: Unpack[Options],
) -> CvxpyProgram:
    """A layer from a CVXPY problem: a map from values of its parameters to its solution.

    It is called like a ``CvxpyLayer``: ``x, y = layer(A, b)``. Each parameter is a tensor of its shape, with or without
    a batch dimension; without one it is shared by the batch. ``layer.solve(A, b)`` returns a :class:`Solution` with the
    statuses, the objective, and the multipliers of each constraint as CVXPY has them (``dual_value``).

    Args:
        problem: a ``cvxpy.Problem`` that is convex with every parameter in its place (DPP): linear, quadratic,
            second-order, semidefinite, exponential and power cones. No integers, no complex numbers.
        parameters: all of its parameters, in the order in which a call passes them. Of a symmetric one the symmetric
            part counts.
        variables: those whose values a call returns; also dual variables, such as ``constraint.dual_variables[0]``.
        gp: whether the problem is a geometric program (DGP), whose parameters and variables are positive.
        **options: ``gradient=`` and ``on_failure=``, as of every layer.

    Raises:
        ImportError: CVXPY is not installed, or older than 1.9.
        ValueError: the problem is not DPP, not convex, has integer variables, or a parameter or a variable is missing
            or is not in the problem.

    Example:
        >>> import cvxpy as cp, torch
        >>> from problems import from_cvxpy
        >>> x, p = cp.Variable(2), cp.Parameter(2)
        >>> nearest = cp.Problem(cp.Minimize(cp.sum_squares(x - p)), [cp.norm(x) <= 1])
        >>> layer = from_cvxpy(nearest, parameters=[p], variables=[x])
        >>> y, = layer(torch.tensor([3.0, 4.0]))
        >>> y.round(decimals=4)
        tensor([0.6000, 0.8000])
    """
    cp = _load()
    _check(cp, problem, parameters, variables, gp)
    reduced = _reduce(cp, problem, parameters, gp)
    return CvxpyProgram(reduced, _recoveries(cp, problem, variables, reduced), **options)


def _load() -> Any:
    try:
        import cvxpy
    except ImportError as error:
        raise ImportError(
            "from_cvxpy needs CVXPY: pip install 'declarative-nodes[reference]', or pip install cvxpy."
        ) from error
    if tuple(int(part) for part in cvxpy.__version__.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"from_cvxpy needs CVXPY {oldest} or newer, but {cvxpy.__version__} is installed: "
            f"pip install 'cvxpy>={oldest}'."
        )
    return cvxpy


@dataclass(frozen=True)
class Parameter:
    """One parameter of the user's problem."""

    name: str
    shape: tuple[int, ...]
    symmetric: bool


@dataclass(frozen=True)
class Source:
    """Where entries of a vector of numbers come from: those of a parameter, or of its logarithm."""

    parameter: int
    places: Tensor  # in the parameter, flattened in C order
    logarithm: bool


class AffineMap(nn.Module):
    """constant + sum_i weight_i x[source_i] at target_i: a sparse matrix, for a batch of vectors."""

    def __init__(self, constant: Tensor, target: Tensor, source: Tensor, weight: Tensor) -> None:
        super().__init__()
        for name, value in (("constant", constant), ("target", target), ("source", source), ("weight", weight)):
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (batch, n) -> (batch, m)
        constant: Tensor = self.constant  # type: ignore[assignment]
        moved = x.index_select(-1, self.source) * self.weight  # type: ignore[arg-type, operator]
        return constant.expand(len(x), -1).index_add(-1, self.target, moved)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Reduced:
    """The cone program of a problem, as a function of its parameters."""

    cones: Cones
    size: int  # the number of unknowns
    quadratic: bool
    data: AffineMap  # from the parameters in CVXPY's form to P, q, the constant of the objective, A and b
    parameters: tuple[Parameter, ...]
    sources: tuple[Source, ...]
    sign: float  # of the objective; -1 to maximise
    gp: bool
    unknowns: Mapping[int, slice]  # of each variable, by its number in CVXPY
    rows: Mapping[int, slice]  # of each constraint, likewise


@dataclass(frozen=True)
class Recovery:
    """How a value of the user's is found in a solution: entries of u or of z, or zeros."""

    shape: tuple[int, ...]
    places: Tensor  # (entries,), in C order
    present: Tensor  # (entries,), whether it is an entry at all
    kind: str = "primal"  # or "dual", "matrix" for the multiplier of a semidefinite cone, "exp" for geometric programs

    def __call__(self, u: Tensor, z: Tensor) -> Tensor:  # (batch, m), (batch, k)
        if self.kind == "matrix":
            return matrices(z.index_select(-1, self.places.to(z.device)))
        x = (z if self.kind == "dual" else u).index_select(-1, self.places.to(u.device))
        if not bool(self.present.all()):
            x = torch.where(self.present.to(u.device), x, 0.0)
        x = x.exp() if self.kind == "exp" else x
        return x.reshape(-1, *self.shape)


class CvxpyProgram(nn.Module):
    """A CVXPY problem as a layer; see :func:`from_cvxpy`.

    Attributes:
        program: the cone program that it is reduced to, as a layer.
    """

    def __init__(
        self,
        reduced: Reduced,
        recoveries: tuple[Sequence[Recovery], Sequence[Sequence[Recovery]]],
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        self.program = ConeProgram(reduced.cones, **options)
        self.data = reduced.data
        self.reduced = reduced
        self.recoveries, self.multipliers = recoveries

    def forward(self, *values: Tensor, solver_args: Mapping[str, Any] | None = None) -> tuple[Tensor, ...]:
        """The values of the variables.

        Args:
            *values: of the parameters.
            solver_args: for code written for cvxpylayers. ``max_iters`` counts; tolerances and the choice of a solver
                do not, since solutions are polished to rounding.

        Raises:
            SolverError: a problem was not solved, unless the layer masks such problems.
        """
        return tuple(self.solve(*values, solver_args=solver_args).y)

    def solve(self, *values: Tensor, solver_args: Mapping[str, Any] | None = None) -> Solution:
        """All that is known of the solutions, differentiable like :meth:`forward`.

        ``y`` are the values of the variables, and ``multipliers`` has for each constraint of the problem its multiplier
        (a tuple of several for a cone of several expressions), as ``dual_value`` in CVXPY.
        """
        P, q, constant, A, b, batched = self._arranged(values)
        program: Any = self._with(solver_args)
        solution: Solution = program.solve(P, q, A, b)
        z = torch.cat([-solution.multipliers, solution.inequality_multipliers], -1)
        if not self.reduced.cones.zero:
            z = solution.inequality_multipliers
        elif self.reduced.cones.rows == self.reduced.cones.zero:
            z = -solution.multipliers
        objective = self.reduced.sign * (solution.objective + constant)
        objective = objective.exp() if self.reduced.gp else objective

        def given(x: Tensor) -> Tensor:
            return x if batched else x[0]

        names = ("codes", "iterations", "residual", "active", "byproduct")
        fields: dict[str, Any] = {name: given(getattr(solution, name)) for name in names}
        fields["y"] = tuple([given(recovery(solution.y, z)) for recovery in self.recoveries])
        fields["multipliers"] = tuple(
            [_alone([given(part(solution.y, z)) for part in parts]) for parts in self.multipliers]
        )
        return dataclasses.replace(
            solution,
            **fields,
            inequality_multipliers=given(z),
            objective=given(objective),
            rows=None,
        )

    def _with(self, arguments: Mapping[str, Any] | None) -> ConeProgram:
        """The program, solved as the arguments say."""
        limits = [arguments[name] for name in ITERATION_ARGUMENTS if name in arguments] if arguments else []
        if not limits:
            return self.program
        return self.program.with_plan(
            solver=dataclasses.replace(self.program.spec.plan.solver, max_iterations=int(limits[0]))  # type: ignore
        )

    def _arranged(self, values: Sequence[Any]) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor, bool]:
        """P, q, the constant of the objective, A and b for the batch, and whether there was a batch dimension."""
        reduced = self.reduced
        tensors, size = self._checked(values)
        batch = 1 if size is None else size
        constants: Any = self.data.constant
        like: Tensor = tensors[0] if tensors else constants
        columns = [like.new_zeros(batch, 0)]
        for source in reduced.sources:
            parameter, x = reduced.parameters[source.parameter], tensors[source.parameter]
            x = (x + x.mT) / 2 if parameter.symmetric else x
            lead = x.shape[: x.dim() - len(parameter.shape)]
            flat = x.reshape(*lead, math.prod(parameter.shape)).expand(batch, -1)
            flat = flat.index_select(-1, source.places.to(x.device))
            columns.append(flat.log() if source.logarithm else flat)
        data: Tensor = self.data(torch.cat(columns, -1).to(torch.promote_types(like.dtype, torch.float32)))
        m, k = reduced.size, reduced.cones.rows
        P, q, constant, A, b = data.to(like.dtype).split([m * m if reduced.quadratic else 0, m, 1, m * k, k], -1)
        quadratic = P.unflatten(-1, (m, m)) if reduced.quadratic else None
        return quadratic, q, constant.squeeze(-1), A.unflatten(-1, (m, k)).mT, b, size is not None

    def _checked(self, values: Sequence[Any]) -> tuple[list[Tensor], int | None]:
        """The values, in one dtype, and the batch size, if one has a batch dimension."""
        parameters = self.reduced.parameters
        if len(values) != len(parameters):
            raise TypeError(
                f"the layer takes {len(parameters)} parameters ({', '.join(p.name for p in parameters)}), but was "
                f"called with {len(values)}."
            )
        size: int | None = None
        for parameter, x in zip(parameters, values, strict=True):
            if not isinstance(x, Tensor):
                raise TypeError(f"parameter {parameter.name} must be a tensor, but is {type(x).__name__}.")
            if not x.is_floating_point():
                raise TypeError(
                    f"parameter {parameter.name} must be a floating-point tensor, but is {x.dtype}: use "
                    "x.to(torch.get_default_dtype())."
                )
            extra = x.dim() - len(parameter.shape)
            if extra not in (0, 1) or tuple(x.shape[extra:]) != parameter.shape:
                raise ValueError(
                    f"parameter {parameter.name} must have shape {parameter.shape}, perhaps after a batch dimension, "
                    f"but has shape {tuple(x.shape)}."
                )
            if extra:
                if size not in (None, 1, len(x)) and len(x) != 1:
                    raise ValueError(f"parameter {parameter.name} has a batch of {len(x)}, but those before it {size}.")
                size = len(x) if size in (None, 1) else size
        dtype = torch.float32
        for x in values:
            dtype = torch.promote_types(dtype, x.dtype)
        return [x.to(dtype) for x in values], size

    def extra_repr(self) -> str:
        """The parameters, for ``print(layer)``."""
        return ", ".join(f"{p.name}: {p.shape}" for p in self.reduced.parameters)


def _alone(parts: list[Tensor]) -> Any:
    """A single one by itself, several as a tuple, None where nothing is known."""
    return parts[0] if len(parts) == 1 else tuple(parts) or None


# What is asked of CVXPY, once.


def _check(cp: Any, problem: Any, parameters: Sequence[Any], variables: Sequence[Any], gp: bool) -> None:
    if not isinstance(problem, cp.Problem):
        raise TypeError(f"problem must be a cvxpy.Problem, but is {type(problem).__name__}.")
    for name, given in (("parameters", parameters), ("variables", variables)):
        if not isinstance(given, Sequence):
            raise TypeError(f"{name} must be a list, but is {type(given).__name__}.")
    if any(v.attributes["boolean"] or v.attributes["integer"] for v in problem.variables()):
        raise ValueError("the problem has integer or boolean variables: such a solution has no derivative. Relax them.")
    if any(leaf.is_complex() for leaf in (*problem.variables(), *problem.parameters())):
        raise ValueError("the problem has complex variables or parameters: state their real and imaginary parts.")
    if gp and not problem.is_dgp():
        raise ValueError("the problem is not a geometric program (problem.is_dgp() is False).")
    if not gp and not problem.is_dcp():
        hint = " It is a geometric program: pass gp=True." if problem.is_dgp() else ""
        raise ValueError(f"the problem is not convex by CVXPY's rules (problem.is_dcp() is False).{hint}")
    if not (problem.is_dpp("dgp") if gp else problem.is_dpp(quad_form_dpp="qp")):
        raise ValueError(
            "the problem is not DPP: parameters must enter affinely, such as in A @ x, not in products of two of them. "
            "Pass a product as a parameter of its own; see CVXPY's page on disciplined parametrized programming."
        )
    known = {p.id: p for p in problem.parameters()}
    given_ids = [getattr(p, "id", None) for p in parameters]
    missing = [p.name() for p in problem.parameters() if p.id not in given_ids]
    if missing:
        raise ValueError(f"parameters must be all those of the problem, but {', '.join(missing)} is missing.")
    strange = [str(p) for p in parameters if getattr(p, "id", None) not in known]
    if strange or len(set(given_ids)) < len(given_ids):
        raise ValueError(
            f"{', '.join(strange)} is not a parameter of the problem." if strange else "a parameter is given twice."
        )
    duals = [v.id for constraint in problem.constraints for v in constraint.dual_variables]
    for v in variables:
        if getattr(v, "id", None) not in {*duals, *(one.id for one in problem.variables())}:
            raise ValueError(f"{v} is not a variable of the problem, nor a dual variable of its constraints.")


def _reduce(cp: Any, problem: Any, parameters: Sequence[Any], gp: bool) -> Reduced:
    """CVXPY's cone program, and what became of the parameters, variables and constraints in it."""
    from cvxpy.reductions.dgp2dcp.dgp2dcp import Dgp2Dcp
    from cvxpy.utilities import scopes

    inner, logs, log_variables = problem, {}, {}
    if gp:
        reduction = Dgp2Dcp(problem)
        inner, _ = reduction.apply(problem)
        logs = {new[0]: old for old, new in reduction.param_id_map.items()}
        log_variables = {old: new[0] for old, new in reduction.var_id_map.items()}
    with scopes.quad_form_dpp_scope():
        data, chain, _ = inner.get_problem_data(cp.SCS)
    program = data[cp.settings.PARAM_PROB]
    became = {new[0]: old for old, new in chain.compose_param_id_map().items()}
    index = {p.id: i for i, p in enumerate(parameters)}
    sources, width = [], 0
    by_column = sorted((program.param_id_to_col[p.id], p) for p in program.parameters)
    for _, lowered in by_column:
        own = became.get(lowered.id, lowered.id)
        user = logs.get(own, own)
        leaf = parameters[index[user]]
        sources.append(Source(index[user], _lowered_places(leaf), own in logs))
        width += lowered.size
    variable = {old: new[0] for old, new in chain.compose_var_id_map().items()}
    size = program.x.size
    unknowns = {}
    for v in problem.variables():
        name = log_variables.get(v.id, v.id)
        name = variable.get(name, name)
        if name in program.var_id_to_col:
            start = program.var_id_to_col[name]
            unknowns[v.id] = slice(start, start + program.id_to_var[name].size)
    rows, start = {}, 0
    for constraint in program.constraints:
        rows[constraint.id] = slice(start, start + constraint.size)
        start += constraint.size
    constraint_map = chain.compose_constr_id_map()
    rows = {
        c.id: rows[constraint_map.get(c.id, c.id)]
        for c in problem.constraints
        if constraint_map.get(c.id, c.id) in rows
    }
    dims = program.cone_dims
    if dims.pnd:
        raise ValueError("the problem has a power cone of more than three dimensions, which is not supported.")
    cones = Cones(dims.zero, dims.nonneg, tuple(dims.soc), tuple(dims.psd), dims.exp, tuple(float(a) for a in dims.p3d))
    return Reduced(
        cones,
        size,
        program.P is not None,
        _affine(program, size, cones.rows, width),
        tuple(Parameter(p.name(), tuple(p.shape), _is_symmetric(p)) for p in parameters),
        tuple(sources),
        -1.0 if isinstance(problem.objective, cp.Maximize) and not gp else 1.0,
        gp,
        unknowns,
        rows,
    )


def _is_symmetric(leaf: Any) -> bool:
    return any(leaf.attributes[name] for name in ("symmetric", "PSD", "NSD"))


def _lowered_places(leaf: Any) -> Tensor:
    """Which entries of a parameter, in C order, CVXPY takes in which order."""
    from cvxpy.reductions.cvx_attr2constr import lower_value

    places = np.arange(max(leaf.size, 1)).reshape(leaf.shape)
    if leaf.attributes["diag"] or leaf.attributes["sparsity"] or _is_symmetric(leaf):
        places = np.asarray(lower_value(leaf, places))
    return torch.from_numpy(places.flatten(order="F").copy())


def _affine(program: Any, m: int, k: int, width: int) -> AffineMap:
    """P, q, d, A and b in one vector, as CVXPY's sparse matrices say; those of A and b are of A u + b in K."""
    sign = {"A": -1.0, "b": 1.0}
    q_rows, A_rows = m + 1, k * (m + 1)
    parts: list[tuple[Any, int, Any]] = []
    offset = 0
    if program.P is not None:
        parts.append((program.P.tocoo(), offset, None))
        offset += m * m
    parts.append((program.q.tocoo(), offset, None))
    offset += q_rows
    A = program.A.tocoo()
    assert A.shape[0] == A_rows
    weights = np.where(A.row < k * m, sign["A"], sign["b"])
    parts.append((A, offset, weights))
    target = np.concatenate([part.row + start for part, start, _ in parts])
    source = np.concatenate([part.col for part, _, _ in parts])
    weight = np.concatenate([part.data * (1.0 if by is None else by) for part, _, by in parts])
    constant = np.zeros(offset + A_rows)
    fixed = source == width  # the last column is that of the constants
    np.add.at(constant, target[fixed], weight[fixed])
    moving = [torch.from_numpy(np.ascontiguousarray(x[~fixed])) for x in (target, source, weight)]
    return AffineMap(torch.from_numpy(constant), moving[0].long(), moving[1].long(), moving[2])


def _recoveries(
    cp: Any, problem: Any, variables: Sequence[Any], reduced: Reduced
) -> tuple[tuple[Recovery, ...], tuple[tuple[Recovery, ...], ...]]:
    """How the variables are found in a solution, and the multipliers of all constraints."""
    multipliers = tuple(tuple(_multipliers(cp, c, reduced)) for c in problem.constraints)
    duals = {
        v.id: part
        for constraint, parts in zip(problem.constraints, multipliers, strict=True)
        for v, part in zip(constraint.dual_variables, parts, strict=False)
    }
    found = []
    for v in variables:
        if v.id in duals:
            found.append(duals[v.id])
        elif v.id in reduced.unknowns:
            found.append(_variable(v, reduced))
        else:
            raise ValueError(f"the multiplier {v} is not known after CVXPY's reductions.")
    return tuple(found), multipliers


def _variable(v: Any, reduced: Reduced) -> Recovery:
    from cvxpy.reductions.cvx_attr2constr import recover_value_for_leaf

    where = reduced.unknowns[v.id]
    numbers = np.arange(where.start, where.stop) + 1.0  # 0 stands for no entry
    if v.attributes["diag"] or v.attributes["sparsity"] or _is_symmetric(v):
        found = recover_value_for_leaf(v, numbers, project=False)
        places = np.asarray(found.todense() if hasattr(found, "todense") else found)
    else:
        places = numbers.reshape(v.shape, order="F")
    return _recovery(places, tuple(v.shape), "exp" if reduced.gp else "primal")


def _recovery(places: Any, shape: tuple[int, ...], kind: str) -> Recovery:
    """From an array of the places plus 1, 0 where there is none."""
    flat = torch.from_numpy(np.asarray(places, dtype=np.int64).flatten(order="C").copy())
    return Recovery(shape, (flat - 1).clamp(min=0), flat > 0, kind)


def _multipliers(cp: Any, constraint: Any, reduced: Reduced) -> Iterable[Recovery]:
    """Those of a constraint, one for each of its dual variables."""
    if constraint.id not in reduced.rows or reduced.gp:
        return
    where = reduced.rows[constraint.id]
    numbers = np.arange(where.start, where.stop) + 1
    kinds = cp.constraints
    if isinstance(constraint, kinds.PSD):
        yield Recovery(tuple(constraint.shape), torch.from_numpy(numbers - 1), torch.ones(1).bool(), "matrix")
    elif isinstance(constraint, kinds.SOC):
        table = numbers.reshape(-1, constraint.cone_sizes()[0])
        yield _recovery(table[:, 0], (len(table),), "dual")
        rest = table[:, 1:].T if constraint.axis == 0 else table[:, 1:]
        shape = tuple(constraint.args[1].shape)
        yield _recovery(rest if len(shape) == 2 else rest.reshape(shape), shape, "dual")
    elif isinstance(constraint, kinds.ExpCone | kinds.PowCone3D):
        table = numbers.reshape(-1, 3)
        for column, argument in zip(table.T, (constraint.x, constraint.y, constraint.z), strict=True):
            yield _recovery(column.reshape(argument.shape, order="F"), tuple(argument.shape), "dual")
    elif isinstance(constraint, kinds.Equality | kinds.Inequality | kinds.Zero | kinds.NonNeg):
        yield _recovery(numbers.reshape(constraint.shape, order="F"), tuple(constraint.shape), "dual")
