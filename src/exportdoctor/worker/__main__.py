"""`python -m exportdoctor.worker`: started by the engine, not by people."""

import gc

gc.disable()  # imports and a model's construction leave no garbage worth walking for; `serve` turns it on again

from exportdoctor.worker.read_log import LOG  # noqa: E402

LOG.take_environment()

from exportdoctor.worker.scan_server import main  # noqa: E402

main()
