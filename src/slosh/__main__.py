"""`python -m slosh` is the `slosh` command."""

import sys

try:
    from .cli import main
except KeyboardInterrupt:  # while typer and the commands are imported
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
