"""The script of docs/howto/fsdp.md: it trains, and resumes on another number of ranks."""

import re

from readme import FSDP
from support import launch_words, started

LOSS = re.compile(r"epoch (\d): loss ([\d.]+)")


def test_fsdp_script_trains_and_resumes_on_another_number_of_ranks(tmp_path):
    script, run = tmp_path / "my_fsdp.py", tmp_path / "run"
    losses = {}
    for ranks, epochs in ((2, 2), (3, 5)):
        script.write_text(FSDP.replace("epochs(5)", f"epochs({epochs})"))
        words = launch_words("torchrun", ranks, program=[str(script)])[:-1]
        with started(words, tmp_path / "log", RUN_DIR=str(run)) as launch:
            assert launch.wait() == 0, launch.output
        losses |= {int(epoch): float(loss) for epoch, loss in LOSS.findall(launch.output)}
    assert [*losses] == [0, 1, 2, 3, 4]
    assert losses[4] < losses[0] / 10
