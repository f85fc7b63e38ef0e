"""The process in which an engine is tried.

python -m coexec.engines.contract_trial_process ENGINE DEVICE
"""

import sys

from coexec.engines import verdicts
from coexec.engines.contract_trial import compute
from coexec.engines.registry import open_untried

if __name__ == "__main__":
    verdicts.end(lambda: compute(sys.argv[2], open_untried))
