"""Command line: `python -m layered_llm`.

Must not know: anything but the command line's entry.
"""

import sys

from layered_llm.service.cli import main

if __name__ == "__main__":
    sys.exit(main())
