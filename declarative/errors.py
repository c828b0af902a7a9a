"""The warning of the library.

Misuse (a wrong shape, name or type) is a plain ``ValueError`` or ``TypeError``; a problem that was not solved is a
:class:`declarative.SolverError`.
"""

from __future__ import annotations


class NumericalWarning(UserWarning):
    """A result was computed, but not under the conditions that make it exact.

    Constraints that contradict each other for other inputs, a kink, a derivative that is not finite, or problems that
    were masked: the message says what happened, to how many problems of the batch, and what was done instead.

    Example:
        >>> import torch, warnings
        >>> from declarative import DeclarativeNode, NumericalWarning
        >>> twice = DeclarativeNode(lambda x, u: (u - x).square().sum(), start=2,
        ...                         equality=lambda x, u: torch.stack([u.sum() - x[0], u.sum() - x[1]]))
        >>> x = torch.zeros(1, 2, requires_grad=True)
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", NumericalWarning)
        ...     try:
        ...         twice(x).sum().backward()
        ...     except NumericalWarning as warning:
        ...         print("the KKT matrix is singular" in str(warning))
        True
    """
