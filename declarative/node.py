"""The layer."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from . import statement
from .arguments import require_flags
from .derivatives import Derivatives
from .forward import Call, Plan, refuse_captured_in_transform
from .gradients import Rule
from .implicit import Evaluation, Spec, evaluate, find_points
from .inputs import Inputs, arrange, check_in_dims, refuse_nested_forward_mode, refuse_tracing, refuse_without_values
from .problem import Function
from .recording import Recordings
from .reports.structure import StructureReport, report_structure
from .solution import Solution, SolverError
from .solvers import Solver
from .structure import Layouts, Point, Structure, SystemBuilder
from .theory.descent import DescentReport, analyse_call, differentiated_inputs
from .torchside import as_one_step, ordinary_mode, transformed, without_values
from .user.functions import functions_of, has_objective, nesting_of, to_be_contained
from .user.starts import Start, check_start, describe_start

Method = TypeVar("Method", bound=Callable[..., object])
Found = TypeVar("Found")


def _opaque(method: Method) -> Method:
    """A compiled model takes a node as one step: what a solver does depends on values. So a tracer is refused."""

    @functools.wraps(method)
    def whole(self: DeclarativeNode, *xs: Tensor, **options: object) -> object:
        refuse_tracing(xs)
        return method(self, *xs, **options)

    reason = "what a solver does depends on values; without fullgraph, torch.compile takes a node as one step"
    return cast(Method, as_one_step(whole, reason))


class DeclarativeNode(nn.Module):
    """A layer whose output is the solution of an optimisation problem.

        y(x) = argmin_u f(x, u)   subject to   h(x, u) = 0   and   g(x, u) <= 0

    The functions are written for one problem, without a batch dimension, with ``u`` as the last argument. A function
    may be an ``nn.Module``, or a method of one: its parameters and buffers are then inputs that the batch shares, they
    get gradients, and the node contains the module.

    Args:
        objective: ``f(*xs, u)``, a scalar. None: the node solves the equations h(x, u) = 0, as many as there are
            unknowns, or fits the residuals.
        equality: ``h(*xs, u)``, a vector or a scalar that is zero at a solution; or several, in a dict or a tuple, of
            any shapes, and the multipliers are nested like them.
        inequality: ``g(*xs, u)``, a vector or a scalar that is not positive at a solution; or several.
        bounds: ``(lower, upper)`` on u: each a number, a tensor of u's shape (infinite entries mean no bound), None, or
            a function of the inputs of one problem, in which it is then differentiable. Starts are moved inside.
        residuals: ``r(*xs, u)``, of any shape, or several in a dict or a tuple, in the place of an objective: half the
            sum of their squares is minimised. ``Newton(hessian="gauss-newton")`` can do without their curvature.
        solver: ``"newton"``, ``"scipy"``, a :class:`Solver`, or a function ``(*xs) -> y`` of the batch: a closed form.
            By default :class:`Newton`, and SciPy for the problems that it leaves unsolved.
        gradient: how to differentiate: ``"exact"``, ``"unconstrained"``, ``"curvature"``, ``"identity"`` or a rule,
            such as ``Smoothed(0.1)``.
        start: where iterative solvers start: the shape of u, a tensor, or a function ``(*xs) -> u`` for one problem; or
            a list of these, of which the best solution is kept (for problems with several local minima). A dict or a
            tuple of shapes or tensors, such as ``{"x": (5, 4), "u": (5, 1)}``, makes several unknowns: the functions
            get them nested like this as their last argument, and the solution is nested like this.
        in_dims: which dimension of each input is the batch, as in ``torch.vmap``: an int or None (shared by the batch)
            for all inputs, or one for each. With None for all, a call is one unbatched problem.
        on_failure: ``"raise"`` a :class:`SolverError` if a problem cannot be solved, or ``"mask"`` it: the best point
            found is returned, it contributes exactly zero gradient, and there is one warning.
        system: builds a structured linear system for the backward pass instead of the dense one; see
            :class:`declarative.linear.System`.
        structure: of the Hessian: ``"dense"``; ``"diagonal"``, which you declare and which is never assembled;
            ``"matrix-free"``: conjugate gradients on Hessian-vector products; or ``"auto"``, the default: a diagonal
            Hessian is recognised, a large one is tried without a matrix first.
        record: True is your promise that the functions are pure: for inputs of given shapes they do the same
            operations every time. They are then traced in the first call of a shape and replayed after that, which
            saves most of Python's overhead. Tensors that they capture are read anew in every call; Python values
            (numbers, branches, which tensor a name is bound to) are frozen, as by ``jax.jit``. By default they are
            called. ``"inductor"`` has torch compile what the compiled core cannot do: a shape
            then takes seconds to a minute when it is first met; the result is kept on disk.

    A node has no state: nothing of a call is kept, so it can be used several times in one loss and from several
    threads. Second derivatives of an approximate rule are approximate too.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode
        >>> node = DeclarativeNode(
        ...     lambda x, u: (u - x).square().sum(),      # the nearest point ...
        ...     lambda x, u: u.sum() - 1,                 # ... on a plane
        ...     solver="scipy", start=3,
        ... )
        >>> x = torch.tensor([[0.0, 1.0, 3.0]], requires_grad=True)
        >>> node(x).detach().round(decimals=4)
        tensor([[-1.,  0.,  2.]])
        >>> torch.autograd.grad(node(x)[0, 0], x)[0]
        tensor([[ 0.6667, -0.3333, -0.3333]])
    """

    def __init__(
        self,
        objective: Function | None = None,
        equality: Callable[..., Any] | None = None,
        inequality: Callable[..., Any] | None = None,
        *,
        bounds: object = None,
        residuals: Callable[..., Any] | None = None,
        solver: str | Solver | Callable[..., Tensor] | None = None,
        gradient: str | Rule = "exact",
        start: Start = None,
        in_dims: int | Sequence[int | None] | None = 0,
        on_failure: Literal["raise", "mask"] = "raise",
        system: SystemBuilder | None = None,
        structure: Structure = "auto",
        record: bool | Literal["inductor"] = False,
        hessian: Structure | None = None,
    ) -> None:
        super().__init__()
        problem = statement.make_problem(objective, equality, inequality, bounds=bounds, residuals=residuals)
        if hessian is not None:
            warnings.warn("hessian= is now called structure=.", DeprecationWarning, stacklevel=2)
            structure = hessian
        if not isinstance(structure, str) or structure not in get_args(Structure):
            names = ", ".join(map(repr, get_args(Structure)))
            raise ValueError(f"structure must be one of {names}, but is {structure!r}.")
        if not (isinstance(record, str) and record == "inductor"):
            require_flags(record=record)
        if not isinstance(on_failure, str) or on_failure not in ("raise", "mask"):
            raise ValueError(f"on_failure must be 'raise' or 'mask', but is {on_failure!r}.")
        recordings = Recordings(record == "inductor") if record else None
        plan = Plan(
            problem=problem,
            solver=statement.as_solver(solver),
            start=check_start(start),
            in_dims=check_in_dims(in_dims),
            on_failure=on_failure,
            structure=structure,
            recordings=recordings,
            layouts=None if system is not None else Layouts(),
            sizes=None if recordings is None else recordings.sizes,
        )
        self.spec = Spec(plan, statement.rule_for(problem, gradient), system)
        if system is not None and not callable(system):
            raise TypeError(f"system must be a function of (point, kind), but is {type(system).__name__}.")
        if plan.solver.needs_start and start is None:
            raise ValueError(
                "start is needed by iterative solvers: give the shape of u (start=3 or start=(2, 2)), a tensor, or a "
                "function (*xs) -> u for one problem."
            )
        for name, module in to_be_contained(statement.owners(problem), self).items():
            self.add_module(name, module)

    @property
    def gradient(self) -> Rule:
        """The rule by which the node is differentiated.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum() / 2, lambda x, u: (u.square().sum() - 1) / 2,
            ...                        solver=lambda x: torch.nn.functional.normalize(x))
            >>> node.gradient
            Exact()
        """
        return self.spec.rule

    def with_gradient(self, gradient: str | Rule) -> DeclarativeNode:
        """The same node with another gradient rule; everything else is shared.

        Args:
            gradient: a name or a :class:`Rule`.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum() / 2, lambda x, u: (u.square().sum() - 1) / 2,
            ...                        solver=lambda x: torch.nn.functional.normalize(x))
            >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
            >>> torch.autograd.grad(node.with_gradient("curvature")(x)[0, 0], x)[0]
            tensor([[0.2000, 0.0000]])
        """
        return self._with(rule=statement.rule_for(self.spec.plan.problem, gradient))

    def with_plan(self, **changes: Any) -> Self:
        """The same node, solved in another way.

        Args:
            **changes: fields of ``node.spec.plan``, such as ``on_failure``.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), start=2)
            >>> node.with_plan(on_failure="mask").spec.plan.on_failure
            'mask'
        """
        return self._with(plan=dataclasses.replace(self.spec.plan, **changes))

    def _with(self, **changes: Any) -> Self:
        other = copy.copy(self)
        other.spec = dataclasses.replace(self.spec, **changes)
        return other

    @_opaque
    def forward(self, *xs: Tensor, start: Any = None) -> Any:
        """The solutions, (batch, *shape of u), in the dtype and on the device of the inputs.

        Args:
            *xs: the inputs.
            start: where to start this time, a point for each problem: usually the last solution of the same problems,
                as a tensor (nested, if there are several unknowns) or, with its multipliers, as the :class:`Solution`
                itself: an interior-point method can then start where it ended, and needs fewer iterations.

        Raises:
            SolverError: a problem was not solved, unless the node masks such problems.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum() / 2, lambda x, u: (u.square().sum() - 1) / 2,
            ...                        solver=lambda x: torch.nn.functional.normalize(x))
            >>> node(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
            tensor([[0.6000, 0.8000],
                    [0.0000, 1.0000]])
        """
        with ordinary_mode(xs) as xs:
            if without_values(xs):
                return self.present(statement.outline(self.spec.plan, self._arranged(xs), self), xs)
            call, inputs, warm = self._bound(xs, start)
            y = self._carry_out(find_points, call, inputs, warm).to(inputs.dtype)
        return self.present(statement.nest_point(call.plan, y if inputs.batched else y[0]), xs)

    @_opaque
    def solve(self, *xs: Tensor, start: Any = None) -> Solution:
        """Solve the batch and return all that is known about it, differentiable like :meth:`forward`.

        Args:
            *xs: the inputs.
            start: as in :meth:`forward`.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum() / 2, lambda x, u: (u.square().sum() - 1) / 2,
            ...                        solver=lambda x: torch.nn.functional.normalize(x))
            >>> solution = node.solve(torch.tensor([[3.0, 4.0]]))
            >>> solution.y, solution.multipliers, solution.objective
            (tensor([[0.6000, 0.8000]]), tensor([[-4.0000]]), tensor([8.]))
        """
        with ordinary_mode(xs) as xs:
            found = self.evaluate(xs, start)
            rows = found.solution.stacked().detach()
            solution = dataclasses.replace(found.solution, objective=found.objective(), rows=rows)
            solution = statement.nest(found.call, found.inputs.xs, solution)
        solution = solution.as_given(found.inputs.dtype, found.inputs.batched)
        return dataclasses.replace(solution, y=self.present(solution.y, xs))

    @_opaque
    def at(self, *xs: Tensor, start: Any = None) -> Point:
        """The problems at their solutions, batch first: what gradient rules and reports work with.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> line = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.sum(), start=2)
            >>> point = line.at(torch.tensor([[1.0, 3.0]]))
            >>> point.u, point.batch.constraints(point.u).abs() < 1e-6
            (tensor([[-1.,  1.]]), tensor([[True]]))
        """
        with ordinary_mode(xs) as xs:
            return self.evaluate(xs, start).point()

    @_opaque
    def derivatives(self, *xs: Tensor) -> Derivatives:
        """A, B, C, H, H_hat and the multipliers at the solutions; always with a batch dimension.

        B and C are for the inputs of the call; parameters of modules have no columns in them.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum() / 2, lambda x, u: (u.square().sum() - 1) / 2,
            ...                        solver=lambda x: torch.nn.functional.normalize(x))
            >>> d = node.derivatives(torch.tensor([[3.0, 4.0]]))
            >>> d.A.shape, d.B.shape, d.H.shape
            (torch.Size([1, 1, 2]), torch.Size([1, 2, 2]), torch.Size([1, 2, 2]))
        """
        with ordinary_mode(xs) as xs:
            found = self.evaluate(xs)
            return Derivatives.at(found.point(), found.call.passed)

    @_opaque
    def descent(self, *xs: Tensor, v: Any = None) -> DescentReport:
        """What the cheaper gradient rules would cost here, for the incoming gradient v (the last argument) of the loss.

        The gradients are those of the inputs that require one or, if none does, of all floating-point inputs, and not
        those of parameters of modules. Active inequalities count as equalities. Unsolved problems of a node that masks
        them are left out. Several unknowns have a v that is nested like them.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum() / 2, lambda x, u: u.sum() - 1,
            ...                        solver=lambda x: x - (x.sum(-1, keepdim=True) - 1) / 3)
            >>> report = node.descent(torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
            >>> report["unconstrained"].cosine, report["unconstrained"].expectation
            (tensor([0.8165]), tensor([2.]))
            >>> report["unconstrained"].verdict
            'safe: descends for every v, cosine 0.82 here (constraints are linear, descends on average).'
        """
        if v is None:
            if len(xs) < 2:
                raise ValueError("descent needs the inputs and the incoming gradient: node.descent(x, v).")
            *xs, v = xs  # type: ignore[assignment]
        wanted = differentiated_inputs(xs)
        with ordinary_mode((*xs, v)) as (*given, v):
            found = self.evaluate([x.detach() if isinstance(x, Tensor) else x for x in given])
            nesting = nesting_of(found.call.plan.problem.objective)
            v = v if nesting is None else nesting.join(v, "v")
            with torch.no_grad():
                return analyse_call(found, v, wanted)

    @_opaque
    def structure(self, *xs: Tensor) -> StructureReport:
        """How large the problems are, where their derivatives can differ from zero, what is chosen, and why.

        Nothing is solved. ``print`` it; ``.plot("structure.png")`` draws H, A and the factor.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u[1:] - u[:-1] ** 2, start=100)
            >>> print(node.structure(torch.zeros(1, 100)))
            unknowns     100
            constraints  99 equalities
            H            100 of 5,050 entries of a triangle can differ from zero, 1 colour
            A            198 of 9,900 entries can differ from zero, 2 colours
            factor       493 entries below the diagonal, 295 of them fill; 2.5 % of a dense one
            chosen       sparse, because the factor has less than 25 % of the entries of a dense one
        """
        with ordinary_mode(xs) as xs:
            refuse_without_values(xs)
            inputs, plan = statement.bind(self.spec.plan, self._arranged(xs), self)
            return report_structure(statement.make_call(plan, inputs), inputs.xs)

    def prepare(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """The inputs of the problem from those of a call: for subclasses that check or complete them; differentiable.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> class Centred(DeclarativeNode):
            ...     def prepare(self, x):
            ...         return (x - x.mean(-1, keepdim=True),)
            >>> node = Centred(lambda x, u: (u - x).square().sum(), solver=lambda x: x.clone())
            >>> node(torch.tensor([[1.0, 3.0]]))
            tensor([[-1.,  1.]])
        """
        return xs

    def present(self, y: Any, xs: Sequence[Tensor]) -> Any:  # noqa: ARG002
        """The output of a call from the solution and the inputs of the call: the counterpart of :meth:`prepare`.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> class Rounded(DeclarativeNode):
            ...     def present(self, y, xs):
            ...         return y.round()
            >>> Rounded(lambda x, u: (u - x).square().sum(), solver=lambda x: x.clone())(torch.tensor([[1.2, 3.4]]))
            tensor([[1., 3.]])
        """
        return y

    def evaluate(self, xs: Sequence[Tensor], start: object = None) -> Evaluation:
        """Solve the batch, and return everything that reports need, flat and batch first.

        Example:
            >>> import torch
            >>> from declarative import DeclarativeNode
            >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), solver=torch.clone)
            >>> node.evaluate([torch.tensor([[3.0, 4.0]])]).inputs.size
            1
        """
        return self._carry_out(evaluate, *self._bound(xs, start))

    def _bound(self, xs: Sequence[Tensor], start: object) -> tuple[Call, Inputs, tuple[Tensor, ...]]:
        """What is to be solved: the call, its inputs, and where it starts."""
        refuse_without_values(xs)
        refuse_nested_forward_mode()
        inputs, plan = statement.bind(self.spec.plan, self._arranged(xs), self)
        refuse_without_values(inputs.xs)
        warm = () if start is None else statement.warm_start(start, inputs, nesting_of(plan.problem.objective))
        statement.refuse_batched_starts(plan, inputs)
        call = statement.make_call(plan, inputs, len(warm), self.gradient.is_one_sided)
        if inputs.size and transformed():
            refuse_captured_in_transform(call, inputs.xs)
        return call, inputs, warm

    def _carry_out(
        self, carry_out: Callable[..., Found], call: Call, inputs: Inputs, warm: tuple[Tensor, ...]
    ) -> Found:
        try:
            return carry_out(self.spec, call, inputs, warm)
        except SolverError as error:
            error.solution = statement.nest(call, inputs.xs, error.solution)
            raise

    def _arranged(self, xs: Sequence[Tensor]) -> Inputs:
        return arrange(self.prepare(*xs), self.spec.plan.in_dims)

    def extra_repr(self) -> str:
        """What is solved, and how, in two lines, for ``print(node)``.

        Example:
            >>> from declarative import DeclarativeNode
            >>> DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.sum(), bounds=(0, None), start=3)
            DeclarativeNode(
              u (3,), objective=<lambda>, equality=<lambda>, bounds=lower
              solver=Newton then Scipy, gradient=Exact, structure=auto, called
            )
        """
        plan = self.spec.plan
        functions = functions_of(plan.problem)
        written = {name: one.written for name, one in functions.items() if name != "objective" or has_objective(one)}
        names = {name: "residuals" if one.squares else name for name, one in functions.items()}
        stated = [f"u {describe_start(plan.start)}"]
        stated += [f"{names[name]}={getattr(f, '__name__', type(f).__name__)}" for name, f in written.items()]
        if plan.problem.bounds is not None:
            stated.append(f"bounds={' and '.join(side.name for side in plan.problem.bounds.sides)}")
        record = "called" if plan.recordings is None else "recorded"
        how = (
            f"solver={plan.solver.name}, gradient={type(self.gradient).__name__}, structure={plan.structure}, {record}"
        )
        return f"{', '.join(stated)}\n{how}"
