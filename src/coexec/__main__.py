"""``python -m coexec`` is ``coexec``."""

import sys

from coexec.cli import main

sys.exit(main())
