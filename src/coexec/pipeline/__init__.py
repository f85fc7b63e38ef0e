"""One model on several machines, one behind the other: plans, planners, simulation, execution."""
