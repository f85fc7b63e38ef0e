"""What the exact planners share: the planners' model of time, written as constraints.

    listing      a good plan in no time, for solvers to start from
    constraints  decisions, moments, clauses and rules, in no solver's words
    placement    where and when tasks run, as decisions and moments
    moves        copies between devices, for each kind of link
    formulation  all of it for some tasks of a problem; plans to solutions and back
    rows         the same for a solver of integer programs

Nothing here imports a solver; the planners do, when they are called.
"""
