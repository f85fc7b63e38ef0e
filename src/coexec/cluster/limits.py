"""When a session acts on what happens to its machines."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """When to act. Seconds."""

    silence_s: float = 3.2
    """A machine that was not heard of for so long is lost."""
    message_s: float = 2.0
    """A message that was not taken after so long, beside what its bytes take, is reported."""
    look_s: float = 0.25
    """From one look at the machines to the next."""
    join_s: float = 1.0
    """From one look for new machines to the next."""
    rest_s: float = 5.0
    """From one change of plan that only gains speed to the next."""
    gain: float = 0.1
    """Share of the period that such a change has to gain."""
    drift: float = 0.25
    """A machine that is off what was thought of it by more than this share leads to a new plan."""
    deploy_s: float = 300.0
    """For machines to receive weights and open sessions."""
