"""Parts that searches share: plans to start from, and the improvement of a plan.

starts     the plans of the fast planners
annealing  small changes to launches, evaluated by the simulator's rules
"""
