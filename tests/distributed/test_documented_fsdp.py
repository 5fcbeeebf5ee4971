"""The script of docs/howto/fsdp.md on two ranks: it saves at a stop, records its verdict, and resumes."""

from readme import python_of
from support import launch_words, started


def test_fsdp_script_saves_at_time_limit_and_resumes(tmp_path):
    script, run = tmp_path / "my_fsdp.py", tmp_path / "run"
    script.write_text(python_of("howto/fsdp").replace("step < 2000", "step < 40"))
    run.mkdir()
    (run / "STOP").write_text("time-limit 4711/1\n")
    for attempt, step in ((1, 10), (2, 40)):
        words = launch_words("torchrun", 2, program=[str(script)])[:-1]
        with started(words, tmp_path / "log", RUN_DIR=str(run), TRAINER_ATTEMPT=str(attempt)) as launch:
            assert launch.wait() == 0, launch.output
        assert f"step {step}: loss " in launch.output
        assert (run / "newest").read_text() == str(step)
    assert (run / "verdict.1").read_text() == "out-of-time 10 time-limit\n"
    assert not (run / "verdict.2").exists()
