"""What searches share: where they begin, and how they improve a plan.

starts     the plans of the quick planners
annealing  small changes to launches, judged by the simulator's rules
"""
