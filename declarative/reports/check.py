"""Is this problem well posed here, and is its gradient right? In words, with numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from ..adaptive import Adaptive
from ..boundary import corner_hint
from ..errors import NumericalWarning
from ..gradients import RULES, Exact, gradient_rows
from ..implicit import Evaluation
from ..inputs import Inputs, first_problem
from ..linear.contract import rank_tolerance
from ..linear.indefinite import kkt_matrix
from ..node import DeclarativeNode
from ..optimality import assess, optimality_tolerance
from ..solution import Solution, Status
from ..structure import Point
from ..theory.assumptions import LARGE
from ..theory.matrices import over, random_like, rank_of_rows, unit_rows
from ..theory.propositions import cosine, reduced_curvature
from ..torchside import ordinary_mode
from ..user.functions import functions_of
from .finite_differences import Comparison, compare_gradient
from .replay import compare_replay
from .result import CheckError, CheckResult, Grade, Line, guarded, require_node
from .structure import report_structure

__all__ = ["CheckError", "CheckResult", "Grade", "Line", "check"]


def check(node: DeclarativeNode, *xs: Tensor) -> CheckResult:
    """Solve the problems of a batch, and test everything that their gradients rest on.

    Nothing is raised for a problem that is wrong: an error of the callables becomes a line that failed. The gradient
    that is compared with finite differences of the solver is the exact one; a node with another rule has a line more,
    that says how far off it is.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, check
        >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                        solver=lambda x: torch.nn.functional.normalize(x))
        >>> result = check(node, torch.tensor([[3.0, 4.0]]))
        >>> result.passed
        True
        >>> result["rank of A"].value
        '1 of 1 active constraint(s) independent'
    """
    require_node("node", node)
    if hasattr(node, "require_smooth"):  # a layer whose constraints need not be smooth functions
        node.require_smooth("check")  # type: ignore[operator]
    with ordinary_mode(xs) as plain, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # what they say has a line of its own
        return CheckResult(tuple(_lines(node, plain)))


def _lines(node: DeclarativeNode, xs: tuple[Tensor, ...]) -> Iterator[Line]:
    masking = node.with_gradient("exact").with_plan(on_failure="mask")
    try:
        with torch.enable_grad():  # without, a captured parameter would be fine
            found = masking.evaluate([x.detach() if isinstance(x, Tensor) else x for x in xs])
    except Exception as error:  # the user's functions may raise anything
        yield _error_line(error)
        return
    inputs, solved = found.inputs, found.solution
    if not inputs.size:
        yield Line("callables", "a batch of no problems", Grade.FAIL, "Pass at least one problem.")
        return
    yield _callables_line(inputs, solved)
    yield Line("captured parameters", "none", Grade.PASS)
    yield from guarded("dtype", _dtype_line, found)
    yield _solved_line(solved, corner_hint(found.batch, solved.y, solved.codes))
    yield from guarded("structure", _structure_line, found)
    yield from guarded("optimality", _optimality_lines, found)
    some = bool(solved.converged.any())  # if none, the second-order conditions may tell why
    point = (found.without_failures() if some else found).point()
    yield from guarded("second order", _second_order_lines, point)
    if not some:
        yield Line("gradient", "not tested", Grade.SKIP, "Nothing to differentiate: no problem was solved.")
        return
    for i in range(len(xs)):
        if inputs.xs[i].is_floating_point() and inputs.xs[i].numel():
            name = f"gradient of input {i}"
            yield from guarded(name, _gradient_line, name, found, i)
    yield from guarded("gradient rule", _rule_lines, node, point)
    if node.spec.plan.recordings is not None:
        yield from guarded("recorded equals called", _replay_line, masking, inputs, xs)


# One function per test.


def _error_line(error: Exception) -> Line:
    notes = " ".join(getattr(error, "__notes__", ()))
    message = f"{type(error).__name__}: {error}".replace("\n", " ")
    captured = "other than through its arguments" in message
    return Line("captured parameters" if captured else "callables", message, Grade.FAIL, notes)


def _callables_line(inputs: Inputs, solved: Solution) -> Line:
    p, q = solved.multipliers.shape[-1], solved.inequality_multipliers.shape[-1]
    shape = tuple(solved.y.shape[1:])
    value = f"{inputs.size} problem(s), u of shape {shape}, {p} equality and {q} inequality constraint(s)"
    surplus = p > solved.y[0].numel()
    advice = "There are more equalities than unknowns: is u what you meant?" if surplus else ""
    return Line.judged("callables", value, advice)


def _dtype_line(found: Evaluation) -> Line:
    inputs, problem = found.inputs, found.call.plan.problem
    one = first_problem(inputs.xs, inputs.in_dims)
    returned = {name: f(*one, found.solution.y[0]).dtype for name, f in functions_of(problem).items()}
    others = [f"{name} returns {dtype}" for name, dtype in returned.items() if dtype != inputs.work]
    value = f"{inputs.dtype} in and out"
    if others:
        advice = "Make constants of the inputs' dtype, for example with x.new_tensor(...) or .to(x)."
        return Line("dtype", f"{value}, but {' and '.join(others)}", Grade.WARN, advice)
    rounded = "" if inputs.dtype == inputs.work else f"Solved in {inputs.work}, rounded to {inputs.dtype}."
    return Line.judged("dtype", value, rounded)


def _solved_line(solved: Solution, hint: str) -> Line:
    total, failed = len(solved.codes), solved.codes[solved.codes != Status.CONVERGED]
    iterations = f"{solved.iterations.double().mean():.1f} iterations on average"
    value = f"{total - len(failed)} of {total} problems, {iterations}"
    kinds = [kind for kind in Status if bool((failed == kind).any())]
    advice = [f"{kind.name.lower()}: {kind.advice}" for kind in kinds]
    return Line.judged("solved", value, " ".join([*advice, hint] if hint else advice), Grade.FAIL)


def _structure_line(found: Evaluation) -> Line:
    report = report_structure(found.call, found.inputs.xs)
    return Line("structure", f"{report.chosen}, because {report.reason}", Grade.PASS)


def _optimality_lines(solved: Evaluation) -> Iterator[Line]:
    point = solved.point()
    batch, found, tolerance = point.batch, assess(point.batch, point.u), optimality_tolerance(point.u.dtype)
    tests = {
        "feasible": (found.violation, "Tighten the solver's tolerance, or check the constraints' signs."),
        "stationary": (found.stationarity, "Tighten the solver's tolerance, or check the closed form's formula."),
    }
    feasible = found.violation <= tolerance
    for name, (size, advice) in tests.items():
        if name == "stationary" and not bool(feasible.any()):
            why = "Slopes say nothing where constraints do not hold."
            yield Line(name, "not tested: no point is feasible", Grade.SKIP, why)
            continue
        worst = (size if name == "feasible" else size[feasible]).max().item()
        value = f"largest relative residual {worst:.1e}, tolerance {tolerance:.1e}"
        yield Line.judged(name, value, "" if worst <= tolerance else advice, Grade.FAIL)
    if batch.q:
        weak = int(found.weak.any(-1).sum())
        advice = (
            "The solution has a kink and only a one-sided derivative: move the inputs, or differentiate with "
            "Smoothed(barrier)."
        )
        value = f"{weak} of {batch.size} problems have an inequality with neither slack nor multiplier"
        yield Line.judged("strict complementarity", value, advice if weak else "")


def _second_order_lines(point: Point) -> Iterator[Line]:
    if point.batch.m > LARGE:
        names = ("rank of A", "minimum", "conditioning")
        yield from (Line(name, f"not tested for more than {LARGE} variables", Grade.SKIP) for name in names)
        return
    mask, batch = point.active.to(point.u.dtype), point.batch.dense()
    jacobian = batch.jacobian(point.u) * mask.unsqueeze(-1)
    hessian = batch.hessian(point.u, point.multipliers)
    lost = ~(hessian.isfinite().all((-2, -1)) & jacobian.isfinite().all((-2, -1)))
    if lost.any():
        advice = "The functions have a corner or an infinite slope or curvature at the solution: smooth them."
        value = f"derivatives of {int(lost.sum())} of {len(lost)} problems are not finite"
        yield Line("second order", value, Grade.FAIL, advice)
        return
    count, rank = point.active.sum(-1), rank_of_rows(jacobian)
    yield _rank_line(count, rank)
    yield _minimum_line(hessian, jacobian)
    yield _conditioning_line(hessian, jacobian, mask, redundant=bool((rank < count).any()))


def _rank_line(count: Tensor, rank: Tensor) -> Line:
    worst = int((count - rank).argmax())
    value = f"{int(rank[worst])} of {int(count[worst])} active constraint(s) independent"
    redundant = int((rank < count).sum())
    advice = f"Drop redundant constraints ({redundant} problem(s)): multipliers and gradients are least-norm choices."
    return Line.judged("rank of A", value, advice if redundant else "")


def _minimum_line(hessian: Tensor, jacobian: Tensor) -> Line:
    size = torch.linalg.matrix_norm(hessian, 2)
    lowest = reduced_curvature(hessian, jacobian)
    relative = torch.where(size > 0, lowest / size, torch.where(lowest.isinf(), torch.inf, 0.0))
    worst = relative.min().item()
    if worst == float("inf"):
        return Line("minimum", "the constraints leave no freedom", Grade.PASS)
    value = f"smallest eigenvalue of the reduced Hessian {worst:.1e} of the size of H"
    tolerance = rank_tolerance(hessian) ** 0.5
    if worst < -tolerance:
        saddles = int((relative < -tolerance).sum())
        advice = f"{saddles} point(s) are saddles or maxima: check signs, or the start."
        return Line("minimum", value, Grade.FAIL, advice)
    advice = "Flat: the solution may not be unique. Add a regularising term."
    return Line.judged("minimum", value, advice if worst < tolerance else "")


def _conditioning_line(hessian: Tensor, jacobian: Tensor, mask: Tensor, redundant: bool) -> Line:
    scaled = over(hessian, hessian.abs().amax((-2, -1)).unsqueeze(-1))
    spectrum = torch.linalg.eigvalsh(kkt_matrix(scaled, unit_rows(jacobian), mask)).abs()
    ratio = spectrum.amax(-1) / spectrum.amin(-1)
    condition = ratio.nan_to_num(torch.inf).max().item()  # a matrix of zeros is as singular as can be
    value, limit = f"condition number of the scaled KKT matrix {condition:.1e}", 1 / rank_tolerance(scaled)
    if condition >= limit and not redundant:
        advice = "Singular: the derivative does not exist or is not unique. Is the objective flat, or a root repeated?"
        return Line("conditioning", value, Grade.FAIL, advice)
    advice = "Expect few correct digits: rescale the problem, use float64."
    return Line.judged("conditioning", value, advice if condition >= limit**0.5 else "")


def _gradient_line(name: str, found: Evaluation, i: int) -> Line:
    """Compare the exact gradient of input i with finite differences of the solver, in float64 if the callables can."""
    try:
        return _judge_gradient(name, compare_gradient(found, i, torch.float64), torch.float64)
    except Exception:  # constants of another dtype, most likely: then in the precision of the inputs
        return _judge_gradient(name, compare_gradient(found, i, found.inputs.work), found.inputs.work)


def _judge_gradient(name: str, found: Comparison, dtype: torch.dtype) -> Line:
    eps = torch.finfo(dtype).eps
    if found.kinks and not found.tested:
        return Line(name, "there is none to compare with: the solution has a kink here", Grade.SKIP)
    value = f"largest relative difference from finite differences {found.worst:.1e} in {found.tested} comparisons"
    if found.worst > eps**0.125:
        advice = "The gradient is wrong here, or the solver inexact: see the lines above, and tighten the solver."
        return Line(name, value, Grade.FAIL, advice)
    notes = []
    if found.worst > eps**0.25:
        notes.append("The solver is not accurate enough for a sharper comparison, or the solution bends strongly.")
    if found.jumped:
        notes.append(f"{found.jumped} time(s) the solver jumped to another solution (a sign, a local minimum).")
    if found.lost:
        notes.append(f"{found.lost} time(s) a neighbouring problem has no solution: is the input confined to a set?")
    if found.kinks:
        notes.append(f"{found.kinks} time(s) there is none to compare with: the solution has a kink.")
    if not found.tested:
        value = "not tested: no neighbouring problem was solved nearby"
    return Line.judged(name, value, " ".join(notes))


def _replay_line(node: DeclarativeNode, inputs: Inputs, xs: tuple[Tensor, ...]) -> Line:
    """Compare what was recorded with the functions themselves, which the user has promised to be the same."""
    name, eps = "recorded equals called", torch.finfo(inputs.work).eps
    found = compare_replay(node, xs)
    value = f"largest relative difference {found.solution:.1e} of the solutions, {found.gradient:.1e} of the gradients"
    if not found.worst <= eps**0.25:
        advice = "The functions are not pure: they do something else than when they were recorded. Use record=False."
        return Line(name, value, Grade.FAIL, advice)
    advice = "" if found.worst <= eps**0.5 else "Rounding is amplified: the problem is ill-conditioned."
    return Line.judged(name, value, advice)


def _rule_lines(node: DeclarativeNode, point: Point) -> Iterator[Line]:
    rule = node.gradient.cheap if isinstance(node.gradient, Adaptive) else node.gradient
    wanted = [i for i, x in enumerate(point.batch.xs) if x.is_floating_point()]
    if isinstance(rule, Exact) or not wanted:
        return
    v = random_like(point.u)
    angles = cosine(*(gradient_rows(one, point, v, wanted) for one in (RULES["exact"], rule)))
    value = f"{type(rule).__name__} by choice: cosine with the exact gradient {angles.min():.2f} at the lowest"
    advice = "" if angles.min() >= 0 else "node.descent(x, v) tells when that is safe."
    yield Line.judged("gradient rule", value, advice)
