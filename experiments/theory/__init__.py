"""The propositions, tested by simulation."""
