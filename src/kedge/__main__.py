"""`python -m kedge` is the `kedge` command."""

from .cli import main

if __name__ == "__main__":
    main()
