"""``python -m simmoe`` is the command ``simmoe``."""

from simmoe.cli.main import main

if __name__ == "__main__":
    main()
