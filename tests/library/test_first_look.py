"""What is seen first: what the package offers, and what a node says of itself."""

import pytest
import torch
from torch import nn

import declarative
import problems
from declarative import ClosedForm, DeclarativeNode, Smoothed


@pytest.mark.parametrize("package", [declarative, problems])
def test_a_package_shows_its_public_names_alone(package):
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, name) for name in dir(package))


def distance(x, u):
    return (u - x).square().sum()


def plane(x, u):
    return u.sum() - x.sum()


class Box(nn.Module):
    def forward(self, x, u):
        return u - x.abs()


def test_a_printed_node_says_in_two_lines_what_is_solved_and_how():
    node = DeclarativeNode(
        distance, plane, Box(), bounds=(0, lambda x: x), start=(3, 1), structure="sparse", record=True
    )
    first, second, *rest = node.extra_repr().split("\n")
    assert first == "u (3, 1), objective=distance, equality=plane, inequality=Box, bounds=lower and upper"
    assert second == "solver=Newton then Scipy, gradient=Exact, structure=sparse, recorded"
    assert not rest
    assert all(line in repr(node) for line in (first, second))


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (torch.zeros(2), "u (2,),"),
        ([torch.zeros(2), torch.ones(2)], "u (2,),"),
        ({"x": (5, 4), "t": ()}, "u {'x': (5, 4), 't': ()},"),
        (lambda x: x, "u as start returns it,"),
    ],
)
def test_the_unknowns_are_told_by_the_start(start, said):
    node = DeclarativeNode(distance, solver="scipy", gradient=Smoothed(0.1), start=start)
    assert said in node.extra_repr()
    assert node.extra_repr().endswith("solver=Scipy, gradient=Smoothed, structure=auto, called")


def test_the_unknown_of_a_closed_form_is_what_it_returns():
    node = DeclarativeNode(distance, solver=ClosedForm(torch.clone))
    assert node.extra_repr().startswith("u as the closed form returns it, objective=distance\nsolver=ClosedForm, ")
