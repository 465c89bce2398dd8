"""`python -m hark`: the command line, for where the `hark` script is not on PATH."""

from hark.cli import main

if __name__ == "__main__":
    main()
