"""Command line: `python -m layered_llm.testing cancel-everywhere`.

Must not know: anything but the command line's entry.
"""

import sys

from layered_llm.testing.command import main

if __name__ == "__main__":
    sys.exit(main())
