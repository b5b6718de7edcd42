"""`python -m dsrun`."""

from dsrun.cli.main import main

if __name__ == "__main__":
    main()
