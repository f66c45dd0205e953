"""Let `python -m toolfold` run the command line, for installations without the `toolfold` script."""

from toolfold.cli import main

if __name__ == "__main__":
    main()
