"""What every layer accepts: a table of shapes, inputs that the batch shares, outputs that own their memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from problems import BallProjection, LeastSquares, OptimalTransport, QuadraticProgram, RobustPooling, SphereProjection
from problems.inputs import DIMENSIONS, arrange

from ..support.problem_table import RULES, TABLE, Case

each_problem = pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)


def storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


@each_problem
@pytest.mark.parametrize("rule", RULES)
def test_gradients_own_their_memory(case: Case, rule: str):
    """The caller's cotangent, the inputs and the other gradients stay as they are when one is scaled in place."""
    xs = case.inputs()
    solution = case.layer.with_gradient(rule).solve(*xs)
    outputs = [x for x in (solution.y, solution.multipliers) if x.requires_grad and x.numel()]
    cotangents = [torch.randn_like(x) for x in outputs]
    grads = torch.autograd.grad(outputs, xs, cotangents)
    places = [storage(x) for x in (*grads, *cotangents, *xs, solution.y) if x.numel()]
    assert len(set(places)) == len(places)
    kept = [v.clone() for v in cotangents]
    for grad in grads:
        grad.mul_(0.5)
    assert all(torch.equal(v, before) for v, before in zip(cotangents, kept, strict=True))


@each_problem
def test_an_input_with_a_batch_of_one_is_shared(case: Case):
    """The same as one copy for each problem, with the sum of their gradients."""
    xs = [x.detach() for x in case.inputs()]
    size = len(case.layer(*xs))
    for i, x in enumerate(xs):
        if x.dim() != len(DIMENSIONS[(*case.layer.required, *case.layer.optional)[i]]) or len(xs) == 1 or not x.numel():
            continue
        one, each = x[:1].clone().requires_grad_(), x[:1].repeat(size, *(1,) * (x.dim() - 1)).requires_grad_()
        outputs = [case.layer(*xs[:i], own, *xs[i + 1 :]) for own in (one, each, x[0])]
        assert all(torch.equal(y, outputs[0]) for y in outputs)
        v = torch.randn_like(outputs[0])
        (shared,), (own,) = torch.autograd.grad(outputs[0], one, v), torch.autograd.grad(outputs[1], each, v)
        assert (shared - own.sum(0, keepdim=True)).abs().max() < 1e-12 * max(1.0, own.abs().max().item())


def test_the_table_checks_shapes():
    def of(*xs: object) -> list[Tensor | None]:
        return arrange("It", ("M",), ("r", "gamma"), xs)

    M, r = torch.ones(4, 3, 2), torch.ones(3)
    assert [x if x is None else x.shape for x in of(M, r)] == [(4, 3, 2), (4, 3), None]
    assert [x if x is None else x.shape for x in of(M[:1], None, torch.ones(5))] == [(5, 3, 2), None, (5,)]
    assert [x if x is None else x.shape for x in of(M[:0], r.unsqueeze(0), torch.tensor(1.0))] == [
        (0, 3, 2),
        (0, 3),
        (0,),
    ]
    for error, match, xs in [
        (TypeError, "It takes M, r and gamma, but was called with 0", ()),
        (TypeError, "called with 4", (M, r, r, r)),
        (TypeError, "M must be a tensor", (None,)),
        (TypeError, "r must be a tensor", (M, 1.0)),
        (TypeError, "floating", (M, r.long())),
        (TypeError, "complex", (M.to(torch.complex64),)),
        (ValueError, r"M must have shape \(batch, m, n\), but has shape \(3,\)", (r,)),
        (ValueError, r"gamma must have shape \(batch,\)", (M, r, M)),
        (ValueError, "m is 3", (M, torch.ones(4, 2))),
        (ValueError, "batch is 4", (M, torch.ones(5, 3))),
        (ValueError, "n must be at least 1", (M[..., :0],)),
        (ValueError, "batch dimension", (M[0], r)),
    ]:
        with pytest.raises(error, match=match):
            of(*xs)
    with pytest.raises(ValueError, match="square"):
        arrange("It", ("X",), (), (M,))
    assert arrange("It", ("b",), (), (torch.ones(2, 0),), empty="p")[0].shape == (2, 0)


def test_an_input_without_a_batch_needs_another_one_with_it():
    x = torch.tensor([3.0, 4.0])
    with pytest.raises(ValueError, match=r"x.unsqueeze\(0\)"):
        SphereProjection()(x)
    assert torch.equal(BallProjection()(x, torch.tensor([1.0, 10.0])), torch.tensor([[0.6, 0.8], [3.0, 4.0]]))
    assert RobustPooling()(x, torch.tensor([1.0, 2.0, 3.0])).shape == (3,)
    assert OptimalTransport()(torch.ones(2, 3), torch.ones(4, 2) / 2).shape == (4, 2, 3)
    assert LeastSquares()(torch.ones(5, 3, 1), torch.ones(3)).shape == (5, 1)
    assert QuadraticProgram()(torch.eye(2).expand(6, 2, 2), x).shape == (6, 2)


def test_options_are_those_of_a_node():
    layer = SphereProjection(gradient="curvature", on_failure="mask")
    assert repr(layer) == "SphereProjection(solver=Normalise, gradient=Curvature)"
    with pytest.raises(ValueError, match="gradient must be"):
        SphereProjection(gradient="nonsense")
    with pytest.raises(ValueError, match="on_failure must be"):
        BallProjection(2.0, on_failure="nonsense")
    with pytest.raises(TypeError, match="nonsense"):
        BallProjection(nonsense=1)
