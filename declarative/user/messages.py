"""What is wrong with a user's function, in words, and what to do about it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from .functions import reached

Function = Callable[..., Tensor]

SPELLED = 4  # captured tensors that are named one by one

IN_PLACE = "changes its input in place: work on a copy (x.clone()), or use the out-of-place operation."
BUFFERS = (
    "changes a parameter or a buffer of its module in place, as running statistics do in training: every evaluation "
    "would be of another problem. Call .eval() on that part of it, or compute without changing it."
)
NO_WAY_TO_U = (
    "objective does not depend on u, its last argument, in a differentiable way: every point would be a solution. "
    "Check the order of the arguments (*xs, u), and for .detach(), .item() or comparisons."
)
NO_SECOND_DERIVATIVE = (
    "of which torch has no second derivative, or a wrong one: write it in other operations, such as a distance as "
    "(a - b).square().sum(-1).sqrt(), a weight norm as v * (g / v.norm(...)), and let attention be computed under "
    "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)."
)
CHANGED = (
    "the functions of a node changed between its forward and its backward pass (a tensor, a number or an attribute "
    "that they reach other than through their arguments; or random numbers), so that this would be the gradient of "
    "another problem than the one that was solved. Change it after backward(), or pass it as an input, with "
    "in_dims=None if the batch shares it."
)

LEAVES_TORCH = r"data-dependent control flow|calling \.item\(\)|data pointer of Tensor"
"""In torch's words: a function looks at the value of a tensor."""

VALUE = (
    "looks at the value of a tensor, which it cannot, since it is called for all problems of the batch at once: "
    "torch.where takes the place of a branch (if, max, min), and there is no .item(), float(), .tolist() or .numpy()."
)
NUMPY = "hands a tensor to NumPy, which knows nothing of derivatives: take the function of the same name from torch."

KINDS = {
    r"dynamic shape|differently shaped": (
        "A shape depends on values here, which it cannot under vmap: instead of selecting with a mask, weigh with it, "
        "torch.where(mask, u, 0)."
    ),
    r"randomness|random operation": (
        "With random numbers it would be another problem in every evaluation: draw them before, and pass them as an "
        "input."
    ),
    r"dtype|scalar type|of type (Float|Double|Half|BFloat16|Long)": (
        "The inputs and u are {dtype} here: bring constants to that, constant.to(u)."
    ),
    r"running_mean or running_var": (
        "With running statistics every evaluation would be of another problem. Call .eval() on that part of the module."
    ),
    r"in-?place|output with shape": (
        "A tensor that was made in the function cannot be filled in place: put its parts together with torch.stack or "
        "torch.cat."
    ),
    r"\b[Ss]izes?\b|\b[Ss]hapes?\b|\b[Dd]imensions?\b|out of bounds|-D tensor|at least \dD": (
        "Write it for one problem, without a batch dimension; u has the shape that start gives it."
    ),
}
"""Remedies by what the message of an error tells; the first that fits is given."""


def explain(
    error: Exception, name: str, function: Function, shapes: Sequence[object], dtype: object
) -> str:  # shapes: of the inputs of one problem, and of u
    """A note on an error that came out of a function: where it happened and, by the kind of error, what to do."""
    count = len(shapes)
    if isinstance(error, TypeError) and not _takes(function, count):
        return (
            f"{name}{_signature(function)} was called with {count} arguments: the {count - 1} input(s) that the node "
            "was called with, and u, which comes last."
        )
    *inputs, u = shapes
    words = ", ".join(map(str, inputs))
    where = (
        f"This happened in {name}(*xs, u), called under torch.vmap for one problem with inputs of shape {words} and u "
        f"of shape {u}."
    )
    remedies = (remedy for pattern, remedy in KINDS.items() if re.search(pattern, str(error)))
    return " ".join([where, *(remedy.format(dtype=dtype) for remedy in list(remedies)[:1])])


def by_numpy(error: BaseException) -> bool:
    """Whether an error comes out of a function of NumPy, or of what a tensor does when NumPy asks for its values."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals.get("__name__", "").partition(".")[0] == "numpy" or frame.f_code.co_name == "__array__":
            return True
        trace = trace.tb_next
    return False


def _takes(function: Function, count: int) -> bool:
    try:
        _called(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a function that does not tell
        pass
    return True


def _signature(function: Function) -> str:
    return str(_called(function).replace(return_annotation=inspect.Signature.empty))


def _called(function: Function) -> inspect.Signature:
    return inspect.signature(function.forward if isinstance(function, nn.Module) else function)


def steps_message(name: str, steps: Sequence[str]) -> str:
    """That a function depends on u through operations alone whose derivative is zero."""
    return (
        f"{name} depends on u only through {' and '.join(steps)}, with a derivative of zero everywhere: no solver can "
        "see which way to go, and every point would pass for a solution. Use a smooth function instead; unknowns that "
        "are whole numbers are beyond what can be differentiated."
    )


def corners_message(corners: Sequence[str]) -> str:
    """What to do about operations with corners; empty if there are none."""
    if not corners:
        return ""
    return (
        f"The functions have corners or jumps ({', '.join(corners)}): a solution that sits on one cannot be reached by "
        "slopes. State it with an extra unknown and inequalities, start={'u': ..., 't': ...}: for |v|, minimise t with "
        "v - t <= 0 and -v - t <= 0; for max(v), minimise t with v - t <= 0."
    )


def on_corner_message(count: int, level: int, size: int, corners: Sequence[str]) -> str:
    """That solutions lie on a corner, where the derivative that is taken is not that of the solution."""
    other = f" {level} of them are not the only solution: the objective is level to one side." if level else ""
    return (
        f"{count} of {size} problems have a solution on a corner ({', '.join(corners)}), where a slope or a curvature "
        f"jumps: the derivative that is taken there is one-sided or wrong.{other} State the corner with an extra "
        "unknown and inequalities, start={'u': ..., 't': ...}: for |v|, minimise t with v - t <= 0 and -v - t <= 0."
    )


def unsteady_message(count: int, size: int) -> str:
    """That solutions are so to second order only, or derivatives change too fast near them."""
    return (
        f"{count} of {size} problems have a solution where the Hessian is singular, or as good as that: it is a "
        "minimum to second order only, and curvature there changes by as much as it is within the accuracy of the "
        "solution. The derivative is not known, and may be infinite: as that of the minimum of u^4 + x u at x = 0. A "
        "small quadratic term in the objective makes the problem regular."
    )


def equations_message(count: int, unknowns: int) -> str:
    """That equations without an objective do not determine a point."""
    many = "of their squares, lambda x, u: h(x, u).square().sum()"
    few = "that chooses among their solutions, lambda x, u: u.square().sum()"
    return (
        f"without an objective there must be as many equations as unknowns, but equality returns {count} value(s) for "
        f"{unknowns} unknown(s). Give an objective {many if count > unknowns else few}."
    )


def batched_start_message(part: str, shape: tuple[int, ...], i: int) -> str:
    """That a start, or a part of one, is read as one point, but looks like one for each problem."""
    size, *one = shape
    return (
        f"start{part} has shape {shape}, which is read as the shape of u for one problem: the solutions would have "
        f"shape {(size, *shape)}. But there are {size} problem(s), their input {i} has shape {tuple(one)}, and the "
        f"functions take a u of shape {tuple(one)} too. If these are starts for each problem, pass them with the call, "
        f"node(x, start=...), and the shape when the node is made, start={tuple(one)}; or let start be a function of "
        f"the inputs of one problem, start=lambda x: x. If u has shape {shape}, let start be a function returning it."
    )


@dataclass(frozen=True)
class Captured:
    """A tensor that a function reaches other than through its arguments."""

    path: str  # what the user calls it: "net.weight"
    module: str = ""  # of which module it is a parameter, "net", if that is called as a whole
    key: str = ""  # and its name there: "weight"
    siblings: int = 0  # how many parameters this module has


def captured_message(name: str, function: Function, tensors: Sequence[Tensor]) -> str:
    """That a gradient would be lost, whose, and how to pass it."""
    found = _captured(function, tensors)
    modules = list(dict.fromkeys(one.module for one in found if one.module))
    words = f" ({', '.join(one.path for one in found)})" if found else ""
    frozen = " and ".join(f"{module}.requires_grad_(False)" for module in modules)
    if len(found) > 1:
        lost = (
            f"{name} reaches tensors that require a gradient other than through its arguments{words}; their gradients"
        )
        new, constant = "them arguments", f"they are constants, {frozen or '.detach() them'}"
    else:
        lost = (
            f"{name} reaches a tensor that requires a gradient other than through its arguments{words}; that gradient"
        )
        new, constant = "it an argument", f"it is a constant, {frozen or '.detach() it'}"
    simple = len(found) <= SPELLED and all(one.key.isidentifier() for one in found if one.module)
    remedy = _spelled(name, found or [Captured("w")], modules) if simple else _summed_up(name, found, modules)
    simpler = f" Simpler: {_as_module(name, modules)}" if modules else ""
    return f"{lost} would be lost. Make {new} of every function of the node, {remedy}{simpler} If {constant}."


def _as_module(name: str, modules: Sequence[str]) -> str:
    return (
        f"let {name} be an nn.Module, or a method of one, that holds {' and '.join(modules)}: a node takes the "
        "parameters of such a function along by itself."
    )


def _spelled(name: str, found: Sequence[Captured], modules: Sequence[str]) -> str:
    new = _arguments(found)
    passed = [f"{one.module}.{one.key}" if one.module else one.path for one in found]
    calls = []
    for module in modules:
        keys = [f"{one.key!r}: {word}" for one, word in zip(found, new, strict=True) if one.module == module]
        calls.append(f"torch.func.functional_call({module}, {{{', '.join(keys)}}}, ...)")
    called = f" call the module there as {' and '.join(calls)}," if calls else ""
    dims = ", ".join(["0", *["None"] * len(new)])
    them = f"{'them' if len(new) > 1 else 'it'}: node(x, {', '.join(passed)})"
    return f"{name}(x, {', '.join(new)}, u),{called} and pass {them} with in_dims=({dims})."


def _summed_up(name: str, found: Sequence[Captured], modules: Sequence[str]) -> str:
    module = modules[0] if modules else "module"
    passed = [f"*{one}.parameters()" for one in modules] + [one.path for one in found if not one.module]
    count = sum({one.module: one.siblings for one in found}.values()) + sum(not one.module for one in found)
    return (
        f"def {name}(x, *rest): *weights, u = rest; call the module there as torch.func.functional_call({module}, "
        f"dict(zip(names, weights)), ...) with names = [name for name, _ in {module}.named_parameters()], and pass "
        f"them: node(x, {', '.join(passed)}) with in_dims=(0, *[None] * {count})."
    )


def _arguments(found: Sequence[Captured]) -> list[str]:
    """Names of arguments: the last part of what the user calls the tensors, or all of it if that is not enough."""
    short = [one.path.split(".")[-1] for one in found]
    return short if len(set(short)) == len(short) else [one.path.replace(".", "_") for one in found]


def _captured(function: Function, tensors: Sequence[Tensor]) -> list[Captured]:
    """What the user calls the tensors, as far as the function tells."""
    wanted = {id(tensor) for tensor in tensors}
    found: dict[int, Captured] = {}
    for label, value in reached(function):
        if isinstance(value, nn.Module):
            parameters = dict(value.named_parameters())
            for key, tensor in parameters.items():
                found.setdefault(id(tensor), Captured(f"{label}.{key}", label, key, len(parameters)))
        else:
            found.setdefault(id(value), Captured(label))
    return [one for place, one in found.items() if place in wanted]
