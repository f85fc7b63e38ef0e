"""The type of the callbacks that receive the progress of long work."""

from collections.abc import Callable

ReportProgress = Callable[[str, int, int], None]
"""Called with the name of a step, the amount done, and the total; 0 if the total is unknown."""
