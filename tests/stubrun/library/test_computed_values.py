"""Functions of the library that compute a value only from their arguments, and their agreement with jobgen's."""

import pytest

from jobgen.jobs import account


@pytest.mark.parametrize(
    ("call", "printed"),
    [
        ("join_by ', ' a 'b 2' c", "a, b 2, c"),
        ("join_by ' or ' a", "a"),
        ("count_items 0,1,2", "3"),
        ("count_items 5", "1"),
        ("count_items ''", "0"),
        ("smallest_cpu_count 8", "8"),
        ("smallest_cpu_count '8(x2),4'", "4"),
        ("smallest_cpu_count '4,16(x3)'", "4"),
        ("smallest_cpu_count '64(x100)'", "64"),
        ("smallest_cpu_count ''", "1"),
        ("smallest_cpu_count abc", "1"),
        ("smallest_cpu_count 0", "1"),
        ("a=(n1 n2 n3) b=(n2 n3 n30); count_common a b", "2"),
        ("a=(n1 n2 n3) b=(); count_common a b", "0"),
        ("a=() b=(n1 n2 n3); count_common a b", "0"),
        ("SLIPWAY_PROBE_SECONDS=.5; retry_limit", "1.5"),
        ("SLIPWAY_PROBE_SECONDS=20; retry_limit", "60"),
        ("SLURM_JOB_NUM_NODES=3; count_nodes", "3"),
        ("SLURM_JOB_NUM_NODES=; count_nodes", "1"),
        ("SLURM_JOB_NUM_NODES='a[$(exit 9)]'; count_nodes", "1"),
        ("plural 1 node", "1 node"),
        ("plural 0 node", "0 nodes"),
        ("plural 2 GPU", "2 GPUs"),
        ("format_duration 0", "0 s"),
        ("format_duration 59", "59 s"),
        ("format_duration 60", "1.00 min"),
        ("format_duration 3599", "60.0 min"),
        ("format_duration 3600", "1.00 h"),
        ("format_duration 360000", "100.0 h"),
        ("image_mount '/a,b:c\"d' '/e f'", 'type=bind,"source=/a,b:c""d","destination=/e f",image-src=/,ro'),
        ("bind_mount '/a,b:c\"d'", 'type=bind,"source=/a,b:c""d","destination=/a,b:c""d"'),
    ],
)
def test_functions_print_expected_value(bash, call, printed):
    assert bash(call).out.rstrip("\n") == printed


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("01:00:10", "3610"),
        ("00:08:09", "489"),
        ("100:00:00", "360000"),
        ("3600", "3600"),
        ("1:2", "62"),
        ("1:00:00:08", "86408"),
        *[(damaged, "") for damaged in ("", "abc", "1:", "-1", "a[$(id)]:00:00")],
    ],
)
def test_to_seconds_of_pbs_time(bash, said, seconds):
    assert bash('to_seconds "$1"', said, scheduler="pbs").out.strip() == seconds


@pytest.mark.parametrize("date", ["x", "", "Fri Nov 99 15:43:09 2026"])
def test_seconds_since_unparsable_date_prints_nothing(bash, date):
    assert bash('seconds_since "$1"', date, scheduler="pbs") == (0, "", "")


@pytest.mark.parametrize(
    ("of_bash", "of_jobgen", "amounts"),
    [
        (
            "format_quotient {} 3600",
            lambda amount: account._quotient(amount, 3600),
            [0, 1, 2, 35, 36, 359, 360, 361, 1799, 1800, 35999, 36000, 36001, 123456789],
        ),
        (
            "format_gibibytes {}",
            account._gibibytes,
            [0, 1, 51, 52, 1023, 1024, 10188, 10189, 10239, 10240, 10752, 81559],
        ),
    ],
    ids=["format_quotient", "format_gibibytes"],
)
def test_bash_and_jobgen_round_numbers_identically(bash, of_bash, of_jobgen, amounts):
    out = bash("; ".join(of_bash.format(amount) for amount in amounts)).out
    assert out.splitlines() == [of_jobgen(amount) for amount in amounts]


def test_numbers_are_rounded_to_three_digits():
    assert (account._quotient(4500, 3600), account._gibibytes(81559)) == ("1.25", "80")
