"""Derivatives recorded once and replayed, on the promise that the functions are pure."""

from .cache import Recordings
from .sizes import Size, Sizes
from .trace import RecordingError

__all__ = ["RecordingError", "Recordings", "Size", "Sizes"]
