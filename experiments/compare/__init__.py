"""The layers against independent ones: cvxpylayers, finite differences, the printed formula."""
