"""A shell in the environment of a job: jobscripts/lib/shell.bash."""

import re


def test_shell_command_runs_in_container_and_sets_exit_code(bash):
    code, out, err = bash('container=(env A=1); run_command sh -c \'echo "$A $*"; exit 7\' - "b  c" "*"')
    assert (code, out) == (7, "1 b  c *\n")
    assert re.search(r"^x\.job: on \S+, in \S.*/i\.sif, with 2 GPUs and 8 cores\n$", err)


def test_shell_without_command_starts_bash_with_prompt(bash):
    out = bash("""container=(sh -c 'echo "$PS1 $*"' -); run_command""").out
    assert out == r"slipway \h:\w\$  bash --norc" + "\n"


def test_pyxis_shell_command_starts_srun(bash, stub):
    stub("srun", 'printf "%s|" "$@"')
    words = "source $lib/shell.bash; on_head_node=(srun --overlap) container=(--container-image=x); run_command a b"
    assert bash(words)[1] == "--overlap|--container-image=x|a|b|"
