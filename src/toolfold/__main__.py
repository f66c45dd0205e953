"""`python -m toolfold`: the command line, if no script is installed."""

from toolfold.cli import main

if __name__ == "__main__":
    main()
