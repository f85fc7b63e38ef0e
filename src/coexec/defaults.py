"""Settings that are one of several words, and their defaults.

Nothing is imported here: the help of the command line shows them, and needs no engine for that.
"""

from typing import Literal

__all__ = ["AUTO", "MODE", "SAMPLES", "WAITING", "Mode", "Waiting"]

AUTO = "auto"
"""The planner that tries several configurations of the devices with several planners."""
Mode = Literal["latency", "throughput"]
MODE: Mode = "latency"
"""One request as soon as possible, or as many as possible a second."""
Waiting = Literal["passive", "active"]
WAITING: Waiting = "active"
"""Whether cores stay awake while devices wait for each other during a run, or may halt."""
SAMPLES = 3000
"""Tasks that a predictor learns from, on each device: three of four are convolutions."""
