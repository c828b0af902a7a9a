"""The convex problems once more, stated in CVXPY and differentiated by cvxpylayers: an independent opinion.

Nothing here is shared with the layers but the meaning of their inputs. cvxpy and cvxpylayers are an extra, and imported
only when a reference is built.

Settings, as measured with cvxpylayers 1.2. By default it solves transport to four digits, and differentiates it to
three. Tight is SCS at 1e-9 with the derivative mode ``dense``: with linear and second-order cones solutions are then
good to 1e-8 and gradients to 1e-6 or much better. At 1e-10 SCS stalls now and then, and returns anything. Clarabel at
1e-12 leaves solutions with a quadratic objective off by 1e-6, which tighter tolerances seldom mend.

With exponential cones the derivative of the projection onto the cone is best for entries of the size of 1, so that the
statements with entropies are scaled: their gradients are then good to about 1e-6, at 1e-8, instead of 1e-5. They are
written with ``kl_div``; with ``entr``, unscaled and with gamma = 10, a right solution came with a wrong gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .ball import BallProjection
from .layer import Layer
from .least_squares import LeastSquares
from .quadratic import EqualityQP, QuadraticProgram
from .robust import RobustPooling
from .simplex import EntropicSimplex, SimplexProjection
from .transport import OptimalTransport

Settings = Mapping[str, Any]

ONE_JOB: Settings = {"n_jobs_forward": 1, "n_jobs_backward": 1}  # to be timed beside one thread of torch
TIGHT: Settings = {"solve_method": "SCS", "mode": "dense", "eps": 1e-9, "max_iters": 100_000, **ONE_JOB}
TIGHT_EXPONENTIAL: Settings = {**TIGHT, "eps": 1e-8}
DEFAULT: Settings = {}  # cvxpylayers' own defaults


class MissingReferenceError(ImportError):
    """cvxpy or cvxpylayers is not installed."""


def load() -> tuple[Any, Any]:
    """cvxpy and the class ``CvxpyLayer``.

    Raises:
        MissingReferenceError: one of them is not installed.
    """
    try:
        import cvxpy
        from cvxpylayers.torch import CvxpyLayer
    except ImportError as error:
        raise MissingReferenceError(
            "a comparison with cvxpylayers needs cvxpy and cvxpylayers: "
            f"pip install 'declarative-nodes[reference]' ({error})."
        ) from error
    return cvxpy, CvxpyLayer


@dataclass(frozen=True)
class Statement:
    """A problem in CVXPY, and how it takes the inputs of a layer.

    Attributes:
        objective: to be minimised.
        constraints: as CVXPY writes them.
        parameters: in the order in which ``prepare`` returns their values.
        variable: the unknown; the solution is ``scale`` times it.
        prepare: from the inputs of the layer, in double precision, to the parameters; differentiable.
        settings: with which the reference is tight.
        scale: of the variable.
    """

    objective: Any
    constraints: list[Any]
    parameters: list[Any]
    variable: Any
    prepare: Callable[..., tuple[Tensor, ...]] = lambda *xs: xs
    settings: Settings = field(default_factory=lambda: TIGHT)
    scale: float = 1.0


class Reference(nn.Module):
    """A statement as a layer: takes what the ready-made layer takes, and returns its solution in double precision.

    Args:
        statement: the problem.
        settings: for the solver and the derivative instead of the tight ones; ``{}`` for cvxpylayers' own.
    """

    def __init__(self, statement: Statement, settings: Settings | None = None) -> None:
        super().__init__()
        cp, layer = load()
        self.statement = statement
        self.settings = dict(statement.settings if settings is None else settings)
        self.layer = layer(
            cp.Problem(cp.Minimize(statement.objective), statement.constraints),
            parameters=statement.parameters,
            variables=[statement.variable],
        )

    def forward(self, *xs: Tensor | None) -> Tensor:
        """The solutions, with a batch dimension if an input has one."""
        settings = dict(self.settings)
        if not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in xs)):
            for name in ("mode", "n_jobs_backward"):  # cvxpylayers would hand them to the solver, which knows neither
                settings.pop(name, None)
        parameters = self.statement.prepare(*(None if x is None else x.double() for x in xs))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # NumPy's, to cvxpylayers
            (y,) = self.layer(*parameters, solver_args=settings)
        solution: Tensor = self.statement.scale * y
        return solution


def reference(layer: Layer, *xs: Tensor | None, settings: Settings | None = None) -> Reference:
    """The independent statement of a ready-made convex layer, for inputs of these shapes.

    Args:
        layer: optimal transport, a projection onto a simplex or a ball, a quadratic program with a positive definite Q,
            least squares, or pooling with a convex penalty.
        *xs: inputs as the layer takes them, with or without a batch dimension.
        settings: for the solver and the derivative instead of the tight ones; ``{}`` for cvxpylayers' own.

    Raises:
        MissingReferenceError: cvxpy or cvxpylayers is not installed.
        TypeError: the layer's problem is not convex.

    Example:
        >>> import torch
        >>> from problems import SimplexProjection
        >>> from problems.reference import reference
        >>> x = torch.tensor([[0.5, 0.9, -1.0]])
        >>> reference(SimplexProjection(), x)(x).round(decimals=6).abs()
        tensor([[0.3000, 0.7000, 0.0000]], dtype=torch.float64)
    """
    for kind, state in STATEMENTS.items():
        if isinstance(layer, kind):
            return Reference(state(load()[0], layer, *xs), settings)
    known = ", ".join(kind.__name__ for kind in STATEMENTS)
    raise TypeError(f"there is no convex statement of {type(layer).__name__}, only of {known}.")


# The statements.


def _transport(cp: Any, layer: Layer, M: Tensor, *marginals: Tensor | None) -> Statement:  # noqa: ARG001
    """In T = m n P, whose entries are of the size of 1, and with the objective times gamma m n.

    kl_div(a, b) = a log(a / b) - a + b, and the sums of both T and r c' are given by the marginals.
    """
    gamma, (m, n) = _number(layer), M.shape[-2:]
    T, cost, prior = cp.Variable((m, n)), cp.Parameter((m, n)), cp.Parameter((m, n), nonneg=True)
    rows, columns = cp.Parameter(m), cp.Parameter(n - 1)  # the last column's sum follows from the others
    constraints = [cp.sum(T, axis=1) / n == rows]
    constraints += [(cp.sum(T, axis=0) / m)[:-1] == columns] if n > 1 else []

    def prepare(M: Tensor, r: Tensor | None = None, c: Tensor | None = None) -> tuple[Tensor, ...]:
        mass = 1.0 if r is None and c is None else [x.sum(-1, keepdim=True) for x in (r, c) if x is not None][-1]
        r = M.new_ones(m) / m * mass if r is None else r
        c = M.new_ones(n) / n * mass if c is None else c
        masses = r.sum(-1, keepdim=True), c.sum(-1, keepdim=True)
        common = (masses[0] + masses[1]) / 2
        r, c = r * common / masses[0], c * common / masses[1]
        values = M, m * n * r.unsqueeze(-1) * c.unsqueeze(-2), m * r, n * c[..., :-1]
        return values if n > 1 else values[:3]

    parameters = [cost, prior, rows, *([columns] if n > 1 else [])]
    objective = gamma * cp.sum(cp.multiply(cost, T)) + cp.sum(cp.kl_div(T, prior))
    return Statement(objective, constraints, parameters, T, prepare, TIGHT_EXPONENTIAL, 1 / (m * n))


def _entropic(cp: Any, layer: Layer, x: Tensor) -> Statement:
    """In t = m u, with the objective times m / temperature."""
    temperature, m = _number(layer), x.shape[-1]
    t, cost = cp.Variable(m), cp.Parameter(m)
    objective = cp.sum(cp.kl_div(t, 1)) - cost @ t / temperature
    return Statement(objective, [cp.sum(t) / m == 1], [cost], t, settings=TIGHT_EXPONENTIAL, scale=1 / m)


def _simplex(cp: Any, layer: Layer, x: Tensor) -> Statement:  # noqa: ARG001
    u, point = cp.Variable(x.shape[-1]), cp.Parameter(x.shape[-1])
    return Statement(cp.sum_squares(u - point) / 2, [cp.sum(u) == 1, u >= 0], [point], u)


def _ball(cp: Any, layer: BallProjection, x: Tensor) -> Statement:
    radius = _number(layer)
    u, point = cp.Variable(x.shape[-1]), cp.Parameter(x.shape[-1])
    return Statement(cp.sum_squares(u - point) / 2, [cp.norm(u, 2 if layer.norm == 2 else "inf") <= radius], [point], u)


def _quadratic(
    cp: Any,
    layer: Layer,  # noqa: ARG001
    Q: Tensor,  # noqa: ARG001
    q: Tensor,
    A: Tensor | None = None,
    b: Tensor | None = None,
    G: Tensor | None = None,
    h: Tensor | None = None,
) -> Statement:
    """With a root R of Q = R' R, since CVXPY allows no parameter in a quadratic form."""
    m = q.shape[-1]
    u, root, linear = cp.Variable(m), cp.Parameter((m, m)), cp.Parameter(m)
    objective = cp.sum_squares(root @ u) / 2 + linear @ u
    constraints, parameters = [], [root, linear]
    used = [2 if right is not None and right.shape[-1] else 0 for right in (b, h)]
    for rows, equal in ((A, True), (G, False)):
        if rows is not None and rows.shape[-2]:
            matrix, right = cp.Parameter((rows.shape[-2], m)), cp.Parameter(rows.shape[-2])
            constraints.append(matrix @ u == right if equal else matrix @ u <= right)
            parameters += [matrix, right]

    def prepare(Q: Tensor, q: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        factor = torch.linalg.cholesky((Q + Q.mT) / 2).mT
        return factor, q, *rest[: used[0]], *rest[2 : 2 + used[1]]

    return Statement(objective, constraints, parameters, u, prepare)


def _least_squares(cp: Any, layer: Layer, A: Tensor, b: Tensor, w: Tensor | None = None) -> Statement:  # noqa: ARG001
    """With the weights in the rows."""
    ridge, (n, m) = _number(layer), A.shape[-2:]
    u, rows, right = cp.Variable(m), cp.Parameter((n, m)), cp.Parameter(n)
    objective = cp.sum_squares(rows @ u - right) / 2 + ridge * cp.sum_squares(u) / 2

    def prepare(A: Tensor, b: Tensor, w: Tensor | None = None) -> tuple[Tensor, ...]:
        root = torch.ones_like(b) if w is None else w.sqrt()
        return root.unsqueeze(-1) * A, root * b

    return Statement(objective, [], [rows, right], u, prepare)


def _pooling(cp: Any, layer: RobustPooling, x: Tensor) -> Statement:
    """The pseudo-Huber penalty is scale times the length of (scale, r), up to a constant."""
    scale, penalty, n = _number(layer), layer.penalty, x.shape[-1]
    u, points = cp.Variable(), cp.Parameter(n)
    errors = u - points
    if penalty == "quadratic":
        objective = cp.sum_squares(errors) / 2
    elif penalty == "huber":
        objective = cp.sum(cp.huber(errors, scale)) / 2
    elif penalty == "pseudo-huber":
        lengths = cp.norm(cp.vstack([torch.full((n,), float(scale)).numpy(), errors]), 2, axis=0)
        objective = scale * cp.sum(lengths)
    else:
        raise TypeError(f"pooling with the penalty {penalty!r} is not convex.")
    return Statement(objective, [], [points], u)


def _number(layer: Layer) -> float:
    """The scalar parameter that the layer was made with."""
    if layer.scalar is None or isinstance(layer.scalar.value, Tensor):
        raise TypeError(f"a reference needs {type(layer).__name__} made with a number as its setting.")
    return layer.scalar.value


STATEMENTS: dict[type[Layer], Callable[..., Statement]] = {
    OptimalTransport: _transport,
    SimplexProjection: _simplex,
    EntropicSimplex: _entropic,
    BallProjection: _ball,
    EqualityQP: _quadratic,
    QuadraticProgram: _quadratic,
    LeastSquares: _least_squares,
    RobustPooling: _pooling,
}
