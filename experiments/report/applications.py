"""The sections on the applications: what was done, what it says, tables and pictures."""

from __future__ import annotations

from ..applications.control import CONTROL
from ..applications.control.data import SYSTEMS
from ..applications.control.training import BEFORE, CHEAP, DIFFERENCES, REGULATOR, TOLD
from ..applications.decision import DECISION
from ..applications.decision.data import BUDGET, GROUP
from ..applications.decision.data import SPLIT as PATIENTS
from ..applications.decision.training import MORE, SAME
from ..applications.knapsack import KNAPSACK
from ..applications.knapsack.data import DEGREE, FEATURES, ITEMS, NOISE
from ..applications.knapsack.training import SURROGATE, TEST, VALIDATION
from ..applications.predicting import TWO_STAGE
from ..applications.sorting import SORTING
from ..applications.sorting.data import SPLIT as IMAGES
from ..applications.sorting.findings import SHARE
from ..applications.sorting.training import UNROLLED
from ..shared.application import Application, Record
from ..shared.html import bullets, table, themed, warnings_list
from ..shared.trajectories import DT
from ..worth import WORTH
from ..worth.methods import FEW, LAST
from ..worth.training import LEARNING_RATE, REGIMES

CAN, CANNOT = REGIMES
LONG = 40  # lines of a table
TIMES = {True: " of the exact rule, and as many as fit into the same time of the others", False: ""}


def application_section(application: Application, record: Record | None) -> str:
    """What came of it, or how to find out."""
    command = f"<code>python -m experiments {application.name}</code>"
    content = f"<p>Not run yet: {command}.</p>" if record is None else _content(application, record)
    head = f"<h2>{application.title} <code>{application.name}</code></h2>"
    return f'<section id="{application.name}">\n{head}\n{content}\n</section>'


def _content(application: Application, record: Record) -> str:
    findings = application.findings
    pictures = {True: "", False: ""}
    for picture in findings.pictures(record):
        pictures[picture.wide] += themed(picture)
    shown = f"""<div class="wide">{pictures[True]}</div>
<div class="figures">{pictures[False]}</div>"""
    lines = findings.rows(record)
    content = [table(findings.HEAD, lines), shown]
    if len(lines) > LONG:  # nobody should have to go past it to see the figure
        content = [shown, f"<details><summary>All {len(lines)} lines of the table</summary>{content[0]}</details>"]
    return "\n".join(
        [
            DESCRIPTIONS[application](record["settings"]),
            bullets(findings.sentences(record)),
            *content,
            warnings_list(record["warnings"]),
        ]
    )


def _describe_sorting(settings: Record) -> str:
    return f"""<p>Scikit-learn's digits, 8 by 8 pixels. A small convolutional network gives each of n images a score
between -1 and 1; the transport plan between scores and ranks is a soft permutation, which training brings close to the
sorting one, from the order alone. {IMAGES["train"]} images for training, {IMAGES["validation"]} for validation,
{IMAGES["test"]} for testing; none serves twice. Gamma is {settings["gamma"]:g}, the learning rate begins at
{settings["learning_rate"]:g}. Digits repeat in a sequence, and equal digits may come in any order: places are right if
the digits read off there are.</p>
<p>All rules see the same sequences from the same weights, in {settings["steps"]} steps of {settings["batch"]}
sequences{TIMES[settings["equal_time"]]}, on {settings["seeds"]} seeds, each with its own split, with images that are
turned, slanted, scaled and shifted a little and a learning rate that comes down to zero; {UNROLLED} is plain autograd
through {settings["iterations"]} iterations of Sinkhorn. Adding a number to all scores of a sequence does not change the
plan, which a cheap gradient does not know: in the case <i>centred</i> the mean of a sequence is subtracted from its
scores. Times are seconds of the processor in training, on one thread, without tests; <i>in the layer</i>, forward +
backward. The mark is {SHARE:.0%} of the accuracy that the exact rule ends with on the same seed; its time is the mean
over seeds, if all of them reach it.</p>"""


def _describe_decision(settings: Record) -> str:
    return f"""<p>Scikit-learn's diabetes data. {GROUP} patients at a time compete for a drug that lasts for
{BUDGET:g} full doses of the average patient. Each gets a share between none and a full dose, which costs in
proportion to the body mass index; the budget is spent. A share is worth the progression of the disease that it
prevents, less and less for more of it. The progression is known only a year later: a model predicts it, linear in
age, sex, body mass index and blood pressure, and a quadratic program allocates. Regret is what the allocation for the
true progression would have been worth more. <i>{TWO_STAGE}</i> fits the model by least squares; <i>{MORE}</i> also
has the blood tests; <i>{SAME}</i> predicts the same for everyone; the others pass the regret back through the
quadratic program, by three gradient rules (curvature would be the same as unconstrained, as all constraints are
linear). Ridge, learning rate and when to stop are chosen by regret on validation patients. {PATIENTS["train"]},
{PATIENTS["validation"]} and {PATIENTS["test"]} patients for training, validation and testing; {settings["seeds"]}
seeds, each with its own split. Times are seconds of the processor, on one thread; <i>in the layer</i>, forward +
backward.</p>"""


def _describe_knapsack(settings: Record) -> str:
    return f"""<p>Values of {ITEMS} items depend on {FEATURES} features by a polynomial of degree {DEGREE}, times noise
between {1 - NOISE:g} and {1 + NOISE:g}: the generator of the predict-then-optimise literature (Elmachtoub and Grigas,
2022; PyEPO). A knapsack with room for a part of them is packed by predicted values, and regret is what the best choice
for the true ones would have been worth more, relative to that. The model is linear, so that it cannot be right
everywhere. <i>{TWO_STAGE}</i> fits it by least squares; the others start there: <i>{SURROGATE}</i> by the surrogate
loss of the same paper, the rest by passing the value of a smooth choice (penalty {settings["penalty"]:g} on squared
shares) back through the layer, with three gradient rules. {settings["days"]}, {VALIDATION} and {TEST} days for
training, validation (learning rate, when to stop) and testing; {settings["seeds"]} seeds, each with its own items.</p>
"""


def _describe_control(settings: Record) -> str:
    return f"""<p>Somebody keeps a pendulum, or a pole on a cart, upright by the plan of least cost over
{settings["horizon"]} steps, with a limit on the control that he often meets. {settings["count"]} of his plans are seen,
through noise of {settings["noise"]:.0%} of their size. What a squared state costs him, in units of the squared control,
and the length of the pendulum or pole are unknown: they are parameters of an optimal-control layer, whose plans are
brought close to his by {settings["steps"]} steps of Adam. <i>{DIFFERENCES}</i> has the same layer with central
differences for a gradient, <i>{CHEAP}</i> the paper's approximation, for which the dynamics are constraints too;
<i>{REGULATOR}</i> is a layer that knows no limit and takes the system for linear, and <i>{TOLD}</i> is the same with
the true parameters.</p>
<p>Then each drives the true system for {settings["drive"]} steps from {settings["count"]} states that are held out: it
plans, does the first step, and plans again; at the pendulum it looks but every {SYSTEMS["pendulum"].blind * DT:g}
seconds, and does so much of a plan. (Who looks at it in every step drives within some per cent of the expert whatever
he believes, as each plan makes up for the one before.) Costs count by the true parameters, relative to the expert's,
who drives in the same way; as plans end sooner than drives, his cost is not the least that is possible. <i>Wrong
by</i> is the mean difference of logarithms from the truth; <i>plans apart</i> the root of the mean squared difference
from the expert's plans, in units of the limit and of the initial states; <i>{BEFORE}</i> is where all begin, also with
the truth about some of the parameters. {settings["seeds"]} seeds,
each with its own truth. Times are seconds of the processor, on one thread, without what a layer records when it is
first called.</p>"""


def _describe_worth(settings: Record) -> str:
    return f"""<p>A linear network turns data into the input of a layer, and shall make its solution match a random
target, entry by entry with random weights. Data of dimension {REGIMES[CAN]} can meet the {settings["batch"]} targets,
those of dimension {REGIMES[CANNOT]} cannot. The exact gradient trains for {settings["steps"]} steps or
{settings["seconds"]:g} seconds of the processor, and every other method for exactly as long, in turns, from the same
weights, with Adam at {LEARNING_RATE:g}; {settings["seeds"]} seeds. <i>unconstrained</i> is the paper's approximation,
<i>curvature</i> keeps that of the constraints, <i>identity</i> is Jacobian-free, <i>{FEW} CG steps</i> is the exact
gradient with its linear system left after so many steps of conjugate gradients, <i>one step</i> and <i>{LAST}
steps</i> differentiate the last iterations of a solver alone (of Sinkhorn's, or of a projected gradient method). A
<i>QP by a map</i> has a forward pass that is one product of matrices.</p>
<p>Why an approximation can be better than the truth: the derivative of a solution is an inverse Hessian, restricted
to the constraints. The exact gradient of a squared distance goes through it a second time, which squares its
condition number; a gradient that leaves it out goes through it once. While targets can be met, that is all that
counts, and for softmax with equal weights it is the gradient of the cross-entropy. Where they cannot, a wrong
gradient ends at a wrong point.</p>"""


DESCRIPTIONS = {
    SORTING: _describe_sorting,
    DECISION: _describe_decision,
    KNAPSACK: _describe_knapsack,
    CONTROL: _describe_control,
    WORTH: _describe_worth,
}
