"""`python -m traced_tools`: the command line `traced-tools`."""

from traced_tools.cli import main

if __name__ == "__main__":
    main()
