"""Run the command line with `python -m toolfold`, for installations without the `toolfold` script."""

from toolfold.cli import main

if __name__ == "__main__":
    main()
