"""Derivatives recorded once and replayed."""
