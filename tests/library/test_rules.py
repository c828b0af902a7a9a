"""Each rule equals its own formula, written out with explicit matrices, and differs from the exact one where due."""

import contextlib

import pytest
import torch

from declarative import NumericalWarning
from tests.support.helpers import DOUBLE, REGULAR, RULES, case, cases, gradients, relative, simplex_truth


def literal(d, x_count, v, rule):
    """g' = v' Dy by the formulas as printed, with the active inequalities joined to A."""
    rows = torch.cat([d.A, d.G * d.active.unsqueeze(-1)], 1)
    shift = torch.cat([d.C, d.G_X * d.active.unsqueeze(-1)], 1)
    grads = []
    for b in range(v.shape[0]):
        keep = torch.cat([torch.ones(d.A.shape[1], dtype=torch.bool), d.active[b]])
        A, C = rows[b][keep], shift[b][keep]
        B, H = d.B[b], d.H[b]
        if rule == "exact":  # Proposition 2.1, letter by letter
            inverse = torch.linalg.inv(H)
            Dy = -inverse @ B
            if len(A):
                Dy = inverse @ A.T @ torch.linalg.inv(A @ inverse @ A.T) @ (A @ inverse @ B - C) - inverse @ B
        elif rule == "curvature":
            Dy = -torch.linalg.pinv(H, hermitian=True) @ B
        elif rule == "identity":
            Dy = -B
        grads.append(v[b] @ Dy)
    assert grads[0].shape == (x_count,)
    return torch.stack(grads)


def unshared(problem, batch=3):
    """The inputs with a batch dimension of their own each, so that B and C are those of one problem."""
    xs = problem.xs(batch)
    dims = problem.options.get("in_dims", (0,) * len(xs))
    return tuple(
        x.detach().expand(batch, *x.shape).clone().requires_grad_() if dim is None else x
        for x, dim in zip(xs, dims, strict=True)
    )


LITERAL = [c for c in REGULAR if not c.sign_free and not c.name.startswith("nonlinear")]  # H must be invertible


@pytest.mark.parametrize("rule", ["exact", "curvature", "identity"])
@pytest.mark.parametrize("problem", cases(LITERAL))
def test_back_propagation_equals_the_literal_formula(problem, rule):
    xs = unshared(problem)
    node = problem.node(per_problem(problem), in_dims=0)
    y = node.with_gradient(rule)(*xs)
    v = torch.randn_like(y)
    expected = literal(node.derivatives(*xs), sum(x[0].numel() for x in xs), v.reshape(3, -1), rule)
    found = torch.cat([g.reshape(3, -1) for g in gradients(y, xs, v)], -1)
    assert relative(found, expected) < 1e-9


def per_problem(problem):
    """The truth with no input shared."""
    if problem.name != "two inputs, one shared":
        return problem.truth
    return lambda x, a: x - ((x * a).sum(-1, keepdim=True) - 1) * a / a.square().sum(-1, keepdim=True)


@pytest.mark.parametrize("problem", cases([c for c in REGULAR if not c.sign_free]))
def test_unconstrained_is_the_gradient_of_the_problem_without_constraints(problem):
    """g_hat = -B_f' H_hat^-1 v, from an independent double differentiation of the objective."""
    xs = unshared(problem)
    node = problem.node(per_problem(problem), in_dims=0)
    y = node.with_gradient("unconstrained")(*xs)
    v = torch.randn_like(y)
    found = gradients(y, xs, v)
    for b in range(3):
        one = [x[b].detach().requires_grad_() for x in xs]
        u = y[b].detach().requires_grad_()
        (slope,) = torch.autograd.grad(problem.objective(*one, u), u, create_graph=True)
        hessian = torch.autograd.functional.hessian(lambda u: problem.objective(*one, u), u.detach())  # noqa: B023
        z = torch.linalg.solve(hessian.reshape(u.numel(), -1), v[b].reshape(-1))
        if not slope.grad_fn:
            continue
        expected = torch.autograd.grad(-(z * slope.reshape(-1)).sum(), one, allow_unused=True)
        for grad, truth, x in zip(found, expected, one, strict=True):
            assert relative(grad[b], torch.zeros_like(x) if truth is None else truth) < 1e-10


def test_on_the_sphere_the_rules_are_those_of_the_paper():
    problem = case("sphere")
    (x,) = problem.xs(4)
    y = problem.truth(x).detach()
    v = torch.randn_like(y)
    norm = x.detach().norm(dim=-1, keepdim=True)
    expected = {
        "exact": (v - (v * y).sum(-1, keepdim=True) * y) / norm,
        "curvature": v / norm,
        "unconstrained": v,
        "identity": v,
    }
    for rule, truth in expected.items():
        found = gradients(problem.node("closed form", gradient=rule)(x), (x,), v)[0]
        assert relative(found, truth) < 1e-12, rule


def test_curvature_is_exact_for_eigenvectors_and_unconstrained_is_not():
    problem = case("eigenvector")
    (x,) = problem.xs(5)
    truth = problem.truth(x)
    v = torch.randn_like(truth)
    expected = gradients(truth, (x,), v)[0]
    node = problem.node("closed form")
    assert relative(gradients(node(x), (x,), v)[0], expected) < 1e-10
    assert relative(gradients(node.with_gradient("curvature")(x), (x,), v)[0], expected) < 1e-10
    assert relative(gradients(node.with_gradient("unconstrained")(x), (x,), v)[0], expected) > 1e-1


@pytest.mark.parametrize("rule", RULES[1:])
@pytest.mark.parametrize("name", ["linear-equality", "several", "simplex", "ball"])
def test_approximate_rules_differ_from_the_exact_one(name, rule):
    problem = case(name)
    xs = problem.xs(4)
    node = problem.node("closed form")
    v = torch.randn_like(node(*xs))
    exact = gradients(node(*xs), xs, v)[0]
    cheap = gradients(node.with_gradient(rule)(*xs), xs, v)[0]
    assert relative(cheap, exact) > 1e-2


def test_with_gradient_leaves_the_node_alone_and_shares_the_rest():
    node = case("sphere").node("closed form")
    other = node.with_gradient("identity")
    assert type(node.gradient).__name__ == "Exact"
    assert type(other.gradient).__name__ == "Identity"
    assert other.spec.plan.problem is node.spec.plan.problem


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("problem", cases())
def test_forward_mode_is_the_transpose_of_reverse_mode(problem, rule):
    """v' (J dx) = (J' v)' dx for every rule, also the approximate ones."""
    xs = problem.xs(2)
    node = problem.node("closed form", gradient=rule)
    # Forward there is no telling whether a direction keeps redundant constraints consistent.
    quiet = pytest.warns(NumericalWarning) if problem.redundant and rule == "exact" else contextlib.nullcontext()
    tangents = tuple(torch.randn_like(x) for x in xs)
    with quiet:
        y, dy = torch.func.jvp(node, tuple(x.detach() for x in xs), tangents)
        v = torch.randn_like(y)
        pulled = gradients(node(*xs), xs, v)
    left = (v * dy).sum()
    right = sum((g * t).sum() for g, t in zip(pulled, tangents, strict=True))
    assert float((left - right).abs()) < 1e-10 * max(1.0, float(left.abs()))


@pytest.mark.parametrize("structure", ["auto", "matrix-free"])
def test_multipliers_are_differentiable_under_the_exact_rule_only(structure):
    """Whether the system is solved with the pullback or, where it is not stored, before it."""
    problem = case("linear-equality")
    (x,) = problem.xs(2)
    node = problem.node("closed form", structure=structure)
    assert torch.autograd.gradcheck(lambda x: node.solve(x).multipliers, x)
    assert not node.with_gradient("curvature").solve(x).multipliers.requires_grad


def test_inequality_multipliers_are_differentiable():
    problem = case("inequality active")
    (x,) = problem.xs(2)
    node = problem.node("closed form")
    multipliers = node.solve(x).inequality_multipliers
    # u - x + mu 1 = 0 and sum u = -5
    assert relative(multipliers.detach()[:, 0], (x.detach().sum(-1) + 5) / 3) < 1e-12
    assert relative(torch.autograd.grad(multipliers.sum(), x)[0], torch.full_like(x, 1 / 3)) < 1e-12
    assert multipliers.dtype == DOUBLE


def simplex_multipliers(x):
    """Those of 1'u = 1 and of -u <= 0: minus the threshold t, and max(t - x, 0)."""
    y = simplex_truth(x)
    held = y == 0
    threshold = (torch.where(held, 0.0, x).sum(-1, keepdim=True) - 1) / (~held).sum(-1, keepdim=True)
    return -threshold, torch.where(held, threshold - x, 0.0)


@pytest.mark.parametrize("solver", ["closed form", "newton"])
def test_multipliers_in_forward_mode(solver):
    problem = case("simplex")
    x, dx = (x.detach() for x in problem.xs(4) + problem.xs(4, seed=1))
    node = problem.node(solver)

    def multipliers(x):
        solution = node.solve(x)
        return solution.multipliers, solution.inequality_multipliers

    found, tangents = torch.func.jvp(multipliers, (x,), (dx,))
    truth, expected = torch.func.jvp(simplex_multipliers, (x,), (dx,))
    for one, other in ((found, truth), (tangents, expected)):
        for mine, theirs in zip(one, other, strict=True):
            assert theirs.abs().max() > 0.1
            assert relative(mine, theirs) < 1e-9
