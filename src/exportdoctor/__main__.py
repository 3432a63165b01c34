"""`python -m exportdoctor` is the command line."""

from __future__ import annotations

from exportdoctor.cli.main import main

if __name__ == "__main__":
    main()
