"""Parts that planners of pipelines share.

rows      a graph as numbers: the rows of its inputs that each row of a task needs
bodies    tasks that some machines compute together: the work and the messages of a share of rows,
          and rows for unlike machines, so that they finish together
pipeline  pieces to stages on equal machines (Algorithm 2), exact, and to the real machines
pieces    a graph as a chain of pieces (PICO's Algorithm 1), or of blocks
network   models of a stage's time: computation, messages, and the ports and media they occupy
table     the loads of all stages on equal machines
unlike    stages for unlike machines (Algorithm 3), and machines and pieces moved between stages
building  from tasks, machines and rows to the stages of a plan
"""
