"""The ready-made layers against cvxpylayers."""
