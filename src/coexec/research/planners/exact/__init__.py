"""Parts that the exact planners share: the planners' model of time, written as constraints.

    listing      a good plan within a short time, for solvers to start from
    constraints  decisions, moments, clauses and rules, independent of a solver
    placement    where and when tasks run, as decisions and moments
    moves        copies between devices, for each kind of link
    formulation  all constraints for some tasks of a problem; conversion of plans and solutions
    rows         the same constraints for a solver of integer programs

Nothing here imports a solver; the planners do, when they are called.
"""
