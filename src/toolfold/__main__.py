"""Run the command line by `python -m toolfold`, if no script is installed."""

from toolfold.cli import main

if __name__ == "__main__":
    main()
