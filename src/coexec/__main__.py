"""``python -m coexec`` runs the command line ``coexec``."""

import sys

from coexec.cli import main

sys.exit(main())
