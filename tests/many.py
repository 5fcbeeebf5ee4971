"""Run many trainings in one start of the ranks: imports and rendezvous take longer than a short training.

    python many.py FILE BACKEND

FILE holds a JSON list of the trainer's arguments for each training. The ranks join once, with the first training's
arguments.
"""

import json
import logging
import os
import sys
from pathlib import Path

from slipway.base.environment import read_environment
from slipway.base.stop import Reason, StopRequest
from trainer.config.cli import parse
from trainer.parallel.strategy import connect
from trainer.train import run

MARK = "many: training "
"""Precedes the output of each training."""


def main(trainings: list[list[str]], backend_name: str) -> None:
    configs = [parse([*words, "--backend", backend_name]) for words in trainings]
    environment = read_environment(os.environ)
    comm, strategy = connect(configs[0], environment)
    is_root = comm.world.is_root
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO if is_root else logging.WARNING)
    for number, config in enumerate(configs):
        if is_root:
            print(f"{MARK}{number}", flush=True)
        assert run(config, comm, strategy, StopRequest(), environment) == Reason.NONE
    comm.close()
    sys.stdout.flush()
    os._exit(0)  # as in trainer.launch.rank, for the same reasons


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2])
