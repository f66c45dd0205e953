"""`python -m toolfold`: the command line, where no script was installed for it."""

from toolfold.cli import main

if __name__ == "__main__":
    main()
