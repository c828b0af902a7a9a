"""The exceptions and warnings of the library.

Misuse (a wrong shape, name or type) is a plain ``ValueError`` or ``TypeError``. What can go wrong although the call was
right has a name of its own here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .solution import Solution

LISTED = 10  # failed problems named in a message; the others are counted


class NumericalWarning(UserWarning):
    """A result was computed, but not under the conditions that make it exact.

    Redundant constraints, a kink, a derivative that is not finite, or problems that were masked: the message says what
    happened, to how many problems of the batch, and what was done instead.

    Example:
        >>> import torch, warnings
        >>> from declarative import DeclarativeNode, NumericalWarning
        >>> twice = DeclarativeNode(lambda x, u: (u - x).square().sum(), start=2,
        ...                         equality=lambda x, u: torch.stack([u.sum() - 1, 2 * u.sum() - 2]))
        >>> x = torch.zeros(1, 2, requires_grad=True)
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", NumericalWarning)
        ...     try:
        ...         twice(x).sum().backward()
        ...     except NumericalWarning as warning:
        ...         print("the KKT matrix is singular" in str(warning))
        True
    """


class SolverError(RuntimeError):
    """At least one problem of the batch was not solved.

    Attributes:
        solution: everything that was computed, the solved problems included.
        indices: the positions in the batch of the problems that failed.
        hint: what else there is to say about the failures, often empty.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, SolverError
        >>> node = DeclarativeNode(lambda x, u: x * u, solver="scipy", start=())
        >>> try:
        ...     node(torch.ones(1))
        ... except SolverError as error:
        ...     print(error.indices, error.solution.status[0].name)
        [0] UNBOUNDED
    """

    def __init__(self, solution: Solution, hint: str = "") -> None:
        self.solution = solution
        self.hint = hint
        self.indices: list[int] = (~solution.converged).nonzero().flatten().tolist()
        super().__init__(describe_failures(solution, self.indices, hint))

    def __reduce__(self) -> tuple[type[SolverError], tuple[Solution, str]]:
        return type(self), (self.solution, self.hint)


def describe_failures(solution: Solution, indices: list[int], hint: str = "") -> str:
    """Say in words which problems of a batch failed, how, and what to do."""
    residual = solution.residual.tolist()
    status = solution.status
    lines = [f"{len(indices)} of {len(residual)} problems were not solved:"]
    for i in indices[:LISTED]:
        message = f" ({solution.messages[i]})" if solution.messages[i] else ""
        lines.append(f"  problem {i}: {status[i].name.lower()}, residual {residual[i]:.1e}{message}")
    if len(indices) > LISTED:
        lines.append(f"  and {len(indices) - LISTED} more (see .solution.status)")
    advice = dict.fromkeys(status[i] for i in indices)
    lines += [f"{kind.name.lower()}: {kind.advice}" for kind in advice]
    return "\n".join([*lines, hint] if hint else lines)
