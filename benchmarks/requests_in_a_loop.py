"""A program that answers requests one after the other, from its first second on.

    python benchmarks/requests_in_a_loop.py MODULE MODEL FEEDS SECONDS

MODULE has the `InferenceSession` that is used, FEEDS is a pickled dict. Prints JSON: when each
request began and how many seconds it took, and when the session logged what. The loop ends after
SECONDS.

Nothing else is imported, as it would take time and memory.
"""

import json
import logging
import pickle
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy  # noqa: F401  the feeds are its arrays: any such program has imported it


class Said(logging.Handler):
    """When what was logged."""

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
    said = Said(start_s)
    logging.getLogger("coexec").addHandler(said)
    logging.getLogger("coexec").setLevel(logging.INFO)
    session = session_class(model)
    requests = []
    while time.perf_counter() - start_s < float(seconds):
        began_s = time.perf_counter()
        session.run(None, inputs)
        requests.append((began_s - start_s, time.perf_counter() - began_s))
    print(json.dumps({"requests": requests, "said": said.lines}))


if __name__ == "__main__":
    main()
