"""`python -m exportdoctor.worker`: started by the engine, not by people."""

from exportdoctor.worker.serve import main

main()
