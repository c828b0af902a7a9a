"""What counts as zero on the diagonal of a factor, in every implementation."""

PIVOT = 1e-13  # a pivot that cancelled to less than this fraction is zero
REPLACED = 1e-8  # what it is replaced with, relative to what it was made from
SMALLEST = 1e-300  # where there is nothing to be relative to
GOAL = 1e-15  # a relative residual from which a solution is not corrected any more
FADED = 1e-4  # of what the terms of an equation were, if corrections have left less of them
CORRECTIONS = 20  # at most
LOST = 1e-10  # a relative residual above this is not what a correct pivot order leaves
