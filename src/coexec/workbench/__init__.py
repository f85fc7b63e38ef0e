"""From a model and device names to any of the stages, each kept in the cache."""

from coexec.workbench.bench import Workbench, make_plan, opened_cache
from coexec.workbench.learning import SAMPLES, trained_on
from coexec.workbench.prepared import Candidate, Prepared, Requests, Simulated
from coexec.workbench.settings import AUTO, Mode, Settings

__all__ = ["AUTO", "SAMPLES", "Candidate", "Mode", "Prepared", "Requests", "Settings", "Simulated",
           "Workbench", "make_plan", "opened_cache", "trained_on"]  # fmt: skip
