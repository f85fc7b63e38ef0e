"""Steps from a model and device names to a running plan; each result is kept in the cache."""

from coexec.workbench.bench import Workbench, check_planner, make_plan, opened_cache
from coexec.workbench.learning import trained_on
from coexec.workbench.prepared import Candidate, Prepared, Requests, Simulated
from coexec.workbench.settings import Settings

__all__ = ["Candidate", "Prepared", "Requests", "Settings", "Simulated",
           "Workbench", "check_planner", "make_plan", "opened_cache", "trained_on"]  # fmt: skip
