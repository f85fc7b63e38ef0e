"""Settings whose value is one of several words, and their defaults.

No engine is imported here, because the help of the command line shows these settings.
"""

from typing import Literal

__all__ = ["AUTO", "MODE", "SAMPLES", "WAITING", "Mode", "Waiting"]

AUTO = "auto"
"""The planner that tries several configurations of the devices with several planners."""
Mode = Literal["latency", "throughput"]
MODE: Mode = "latency"
"""The goal: the shortest time of one request, or the most requests per second."""
Waiting = Literal["passive", "active"]
WAITING: Waiting = "active"
"""Whether a core may halt (passive) or stays awake (active) while it waits for another device
during a run."""
SAMPLES = 3000
"""Number of tasks on each device that a predictor learns from; three of four are convolutions."""
