"""What a node says of its structure, against counts by hand, and the drawing."""

import builtins
import struct
import zlib

import pytest
import torch

from declarative import DeclarativeNode, check
from problems import OptimalTransport, SphereProjection

X = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(0)


def near(x, u):
    return (u - x).square().sum()


def chain(x, u):  # noqa: ARG001
    return u[1:] * u[:-1] - 0.1


def node(**options):
    return DeclarativeNode(near, inequality=chain, **{"start": 60, "bounds": (-3.0, None)} | options)


def test_the_counts_are_those_of_a_chain():
    report = node().structure(X)
    assert (report.unknowns, report.equalities, report.inequalities, report.bounds) == (60, 0, 59, 60)
    lines = dict(report.lines())
    assert lines["constraints"] == "59 inequalities, 60 bounds"
    assert lines["H"] == "119 of 1,830 entries of a triangle can differ from zero, 3 colours"  # 60 + 59
    assert lines["A"].startswith("178 of 7,140 entries")  # 2 * 59 + 60
    assert str(report).splitlines()[0] == "unknowns     60"
    assert "119 of 1,830" in report._repr_html_()


def test_fill_is_what_the_factor_has_more_than_the_matrix():
    report = DeclarativeNode(near, lambda x, u: u[:1], start=120).structure(torch.zeros(1, 120))  # noqa: ARG005
    assert dict(report.lines())["factor"].startswith("1 entries below the diagonal, 0 of them fill")


@pytest.mark.parametrize(
    ("made", "x", "chosen", "reason"),
    [
        (node(), X, "sparse", "less than 25 %"),
        (node(structure="sparse"), X, "sparse", "structure='sparse' was asked for"),
        (node(structure="dense"), X, "dense", "structure='dense' was asked for"),
        (DeclarativeNode(near, start=9), X[:, :9], "dense", "fewer than 100"),
        (DeclarativeNode(lambda x, u: u.sum().cos() * x.sum(), start=100), X, "dense", "more than 25 %"),
        (SphereProjection(), X, "the layer's own system", "made for this problem"),
        (OptimalTransport(1.0), torch.ones(1, 3, 4), "the layer's own system", "made for this problem"),
    ],
    ids=["chain", "asked sparse", "asked dense", "small", "full", "layer", "layer with inputs left out"],
)
def test_the_choice_and_its_reason(made, x, chosen, reason):
    report = made.structure(x)
    assert report.chosen == chosen
    assert reason in report.reason
    assert str(report).splitlines()[-1].endswith(f"{chosen}, because {report.reason}")


def test_what_is_said_is_what_is_done():
    for structure in ("auto", "sparse", "dense"):
        one = node(structure=structure)
        one(X)
        stored = any(layout.__class__.__name__ == "SparseLayout" for layout in one.spec.plan.layouts._known.values())
        assert (one.structure(X).chosen == "sparse") == stored


def test_nothing_is_solved():
    hopeless = DeclarativeNode(near, lambda x, u: torch.cat([u[:1], u[:1] - 1]), start=60)  # noqa: ARG005
    report = hopeless.structure(X)
    assert dict(report.lines())["dependent"] == "1 of the equalities have no unknown left to satisfy them"


def test_without_a_pattern_the_reason_is_told():
    report = DeclarativeNode(near, start=100).structure(X[:0, :1])
    assert dict(report.lines())["pattern"] == "not known: there are no problems to look at"
    with pytest.raises(ValueError, match="there is nothing to draw"):
        report.plot("nowhere.png")


def test_the_drawing_is_a_picture(tmp_path):
    node().structure(X).plot(tmp_path / "structure.png")
    data = (tmp_path / "structure.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG")
    assert (width, height) == (1440, 552)
    assert len(set(zlib.decompress(data[data.index(b"IDAT") + 4 : data.rindex(b"IEND") - 8]))) > 10


def test_without_matplotlib_it_is_told(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        node().structure(X).plot("nowhere.png")


def test_a_check_has_a_line_for_it():
    assert check(node(), X)["structure"].value.startswith("sparse, because the factor has less than 25 %")
