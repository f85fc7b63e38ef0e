"""A program that runs requests one after the other, from its start on.

    python benchmarks/requests_in_a_loop.py MODULE MODEL FEEDS SECONDS

<<<<<<< HEAD
MODULE has the `InferenceSession` that is used, FEEDS is a pickled dict. Prints JSON: the start and
the seconds of each request, and the messages of the session's logger with their times. The loop
ends SECONDS after the session's `wait` returns, or SECONDS after the start if there is no `wait`.
=======
MODULE has the `InferenceSession` that is used, FEEDS is a pickled dict. Prints JSON: when each
request began and how many seconds it took, and when the session logged what. The loop ends after
SECONDS.
>>>>>>> main

Nothing else is imported, because an import would take time and memory.
"""

import json
import logging
import pickle
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy  # noqa: F401  the feeds are NumPy arrays, so every such program imports it


class Said(logging.Handler):
    """Log messages, each with the seconds since the start."""

    def __init__(self, start_s):
        super().__init__(logging.INFO)
        self.lines = []
        self._start_s = start_s

    def emit(self, record):
        self.lines.append((time.perf_counter() - self._start_s, record.getMessage()))


def main():
    module, model, feeds, seconds = sys.argv[1:]
    inputs = pickle.loads(Path(feeds).read_bytes())
    session_class = import_module(module).InferenceSession
    start_s = time.perf_counter()
    log_handler = Said(start_s)
    logging.getLogger("coexec").addHandler(log_handler)
    logging.getLogger("coexec").setLevel(logging.INFO)
    session = session_class(model)
    requests = []
    while time.perf_counter() - start_s < float(seconds):
        began_s = time.perf_counter()
        session.run(None, inputs)
        requests.append((began_s - start_s, time.perf_counter() - began_s))
<<<<<<< HEAD
    waiter.join()
    print(json.dumps({"requests": requests, "said": log_handler.lines}))
=======
    print(json.dumps({"requests": requests, "said": said.lines}))
>>>>>>> main


if __name__ == "__main__":
    main()
