"""What a newcomer gets wrong, and what is said about it."""

import traceback
import warnings

import numpy as np
import pytest
import torch

from declarative import DeclarativeNode
from tests.support.helpers import DOUBLE, half_square, relative

X = torch.tensor([[0.1, 0.2, 0.9], [2.0, 0.7, 0.5]], dtype=DOUBLE)
MATRIX = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=DOUBLE)


# Tensors that broadcast against the unknown


MIXED = {
    "one problem taken for three": (
        lambda: (DeclarativeNode(half_square, start=3), (X[0],)),
        r"objective: input 0 of shape \(3,\) is read as a batch of 3 scalars.*unsqueeze\(0\)",
    ),
    "a batch that is captured": (
        lambda: (DeclarativeNode(lambda _, u: (u - X).square().sum(), start=3), (X[:, 0],)),
        r"a tensor of shape \(2, 3\) that the function captures broadcasts against u of shape \(3,\).*as an input",
    ),
    "the input on the left": (
        lambda: (DeclarativeNode(lambda _, u: (X * u).square().sum(), start=3), (X[:, 0],)),
        r"captures broadcasts against u",
    ),
    "a column and a row": (
        lambda: (DeclarativeNode(half_square, start=(3, 1)), (X,)),
        r"u of shape \(3, 1\) and input 0 of shape \(3,\) for one problem broadcast to \(3, 3\).*start=\(3,\)",
    ),
    "in a constraint": (
        lambda: (
            DeclarativeNode(lambda _, u: u.square().sum(), lambda x, u: (u - x).sum(), start=3),
            (X[0],),
        ),
        r"equality: input 0 of shape \(3,\)",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_that_broadcast_against_the_unknown_are_told_once(name):
    make, match = MIXED[name]
    node, inputs = make()
    with pytest.warns(UserWarning, match=match) as caught:
        node(*inputs)
    assert len(caught) == 1
    node(*inputs)  # where a warning would be an error


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        (DeclarativeNode(half_square, start=3), (X,)),
        (DeclarativeNode(lambda q, x, u: (u - x).square().sum() + q @ u, start=2), (MATRIX, X[:, :2])),  # vectors
        (DeclarativeNode(half_square, start=3), (X[:, 0],)),  # two scalars, three unknowns
        (DeclarativeNode(lambda x, u: (u - x).square().sum() / 3, start=()), (X,)),  # a mean
        (DeclarativeNode(lambda x, t, u: (u - t * x).square().sum(), start=3), (X, X[:, 0])),
        (DeclarativeNode(lambda x, u: (u[:, None] - x[None]).square().sum(), start=3), (X,)),
        (DeclarativeNode(lambda x, u: (X[0] - u).square().sum() + x.square(), start=3), (X[:, 0],)),
        (DeclarativeNode(lambda x, u: (X[:, None] - u).square().sum() + x.square(), start=3), (X[:, 0],)),
        (DeclarativeNode(lambda q, x, u: u @ q @ u - x @ u, start=2, in_dims=(None, 0)), (MATRIX, X[:, :2])),
        (DeclarativeNode(half_square, start=3, in_dims=None), (X[0],)),
        (DeclarativeNode(lambda x, u: (x @ u - 1).square() + u @ u, start=3), (X,)),
    ],
)
def test_what_is_meant_is_not_told(node, inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        node(*inputs)


# Constraints of any shape


def test_a_matrix_of_constraints_has_multipliers_like_it():
    def marginals(x, u):
        return torch.stack([u.sum(0) - x, u.sum(1) - x])

    def entries(x, u):
        return 0.05 * x - u

    x = X / X.sum(-1, keepdim=True)
    start = torch.full((3, 3), 1 / 9)
    bare = DeclarativeNode(lambda x, u: (u - x).square().sum(), marginals, entries, start=start)
    named = DeclarativeNode(
        lambda x, u: (u - x).square().sum(),
        lambda x, u: {"h": marginals(x, u)},
        lambda x, u: [entries(x, u)],
        start=start,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = bare.solve(x), named.solve(x)
    assert one.multipliers.shape == (2, 2, 3)
    assert one.inequality_multipliers.shape == (2, 3, 3)
    assert relative(one.y, other.y) < 1e-9
    assert relative(one.multipliers, other.multipliers["h"]) < 1e-9
    assert relative(one.inequality_multipliers, other.inequality_multipliers[0]) < 1e-9


@pytest.mark.parametrize("record", [False, True])
def test_a_column_of_constraints_is_that_of_a_vector(record):
    def solved(shape):
        node = DeclarativeNode(half_square, lambda _, u: (u.sum() - 1).reshape(shape), start=3, record=record)
        x = X.clone().requires_grad_()
        y = node(x)
        return y, *torch.autograd.grad(y.pow(2).sum(), x)

    for one, other in zip(solved((1, 1)), solved((1,)), strict=True):
        assert relative(one, other) < 1e-12


# What has no place in a function


@pytest.mark.parametrize(
    "objective",
    [
        lambda x, u: np.sum((u - x) ** 2, axis=0),
        lambda x, u: np.exp(u).sum() + x.sum(),
        lambda x, u: np.linalg.norm(u - x),
    ],
)
def test_numpy_in_a_function_is_told_by_its_name(objective):
    with pytest.raises(TypeError, match=r"objective hands a tensor to NumPy.*same name from torch"):
        DeclarativeNode(objective, start=3)(X)


@pytest.mark.parametrize(
    "objective",
    [
        lambda x, u: (u - x).square().sum() if u.sum() > 0 else u.sum(),
        lambda x, u: max(u[0], u[1]) + half_square(x, u),
        lambda x, u: float(u[0]) + half_square(x, u),
        lambda x, u: u.sum() * x.sum().item(),
        lambda x, u: u.sum() if x.sum() > 0 else -u.sum(),
        lambda x, u: u.sum() * x.tolist()[0],
        lambda x, u: u.sum() * x.numpy()[0],
    ],
)
def test_a_branch_on_a_value_is_told_in_our_words(objective):
    with pytest.raises(ValueError, match=r"objective looks at the value of a tensor.*torch\.where") as caught:
        DeclarativeNode(objective, start=3)(X)
    assert "file an issue" not in traceback.format_exception(caught.value)[-1]


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ([(0, 1)] * 3, "as SciPy's have"),
        ([(0, 1)] * 2, "as SciPy's have"),
        ([(0, None), (None, 1), (0, 1)], "as SciPy's have"),
        (([0, 0, 0], [1, 1, 1]), r"but is \[0, 0, 0\]. torch.tensor"),
        ((np.zeros(3), None), r"but is array.*torch.tensor"),
    ],
)
def test_bounds_in_the_style_of_others(bounds, match):
    with pytest.raises(TypeError, match=match):
        DeclarativeNode(half_square, bounds=bounds, start=3)


def test_a_start_of_another_size_is_where_the_shape_of_u_is_from():
    with pytest.raises(RuntimeError) as caught:
        DeclarativeNode(half_square, start=5)(X)
    assert "u has the shape that start gives it" in caught.value.__notes__[0]
