"""``trainer report``: one page about runs, made only from their folders."""

import base64
import hashlib
import html
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from messages import assert_error, assert_warning, messages, slugs
from report_folders import make_confusion, make_run, records, write
from report_page import report
from slipway.base.goodput import MEANINGS
from slipway.report.cli import main
from support import permissions_hold


def test_report_of_one_run(tmp_path, capsys):
    run = make_run(tmp_path / "digits", attempts=2)
    make_confusion(run)
    page = report(tmp_path, run)
    assert page.figures()[:4] == ["loss", "loss", "accuracy (%)", "accuracy (%)"]
    assert {"learning rate", "samples/s, all ranks", "Attempts"} <= set(page.figures())
    assert re.search(r"\b27\D+\b30\b\D+\b3\b", page.text)  # correct, of how many, in how many classes
    for word in ("digits done", "out-of-time time-limit", "train.seed", "2.13.0", "node1", "cat dog 1 10.00 %"):
        assert word in page.text, word
    out, err = capsys.readouterr()
    assert (out, err) == (f"{tmp_path}/page.html\n", "")


def test_start_of_each_attempt_but_the_first_is_marked_in_curves(tmp_path):
    run = make_run(tmp_path / "run", attempts=6)  # 20 steps are an epoch, and the last record is at step 200
    for number, step in enumerate((0, 50, 150, 150, 163, 201), start=1):
        path = run / "logs" / str(number) / "status.json"
        write(path, json.loads(path.read_text()) | {"start_step": step})
    figures = report(tmp_path, run).source.split("</figure>")
    for figure in figures[:4]:  # loss and accuracy over epochs and over time
        marks = re.findall(r'<title>(.*?)</title><path [^>]*d="M(\S+) ', figure)
        assert [re.findall(r"\d+", title) for title, _ in marks] == [["2"], ["3", "4"], ["5"]]
        assert [float(x) for _, x in marks] == pytest.approx(
            [58 + 490 * share / 200 for share in (50, 150, 163)], abs=0.1
        )


def test_run_of_one_attempt_has_no_marks_of_attempts(tmp_path):
    assert 'class="start"' not in report(tmp_path, make_run(tmp_path / "run")).source


def test_content_security_policy_allows_only_own_style_and_script(tmp_path):
    page = report(tmp_path, make_run(tmp_path / "run"))
    for kind in ("style", "script"):
        (content,) = page.hashes[kind]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page.policy
    assert page.policy.startswith("default-src 'none';")
    assert "unsafe" not in page.policy
    assert "http" not in re.sub("http-equiv", "", page.source)


def test_report_imports_neither_torch_nor_numpy():
    code = "import sys, slipway.report.cli; print({'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_several_runs_are_compared_by_differing_settings(tmp_path):
    runs = [make_run(tmp_path / f"run{seed}", seed=seed, lr=0.1 * (seed + 1)) for seed in range(3)]
    page = report(tmp_path, *runs)
    head = re.search(r"(?s)<thead>(.*?)</thead>", page.source)[1]
    assert re.findall(r'class="key">(.*?)</th>', head) == ["optim.lr", "train.seed"]
    assert page.ids == ["run-1", "run-2", "run-3"]
    assert page.figures()[:4] == ["validation loss"] * 2 + ["validation accuracy (%)"] * 2


def test_auto_settings_are_compared_by_chosen_value(tmp_path):
    runs = [make_run(tmp_path / amp) for amp in ("bf16", "none")]
    for run in runs:
        write(run / "config.toml", '[train]\namp = "auto"\n')
        provenance = json.loads((run / "run.json").read_text())
        write(run / "run.json", json.dumps(provenance | {"auto": {"train.amp": run.name}}))
    page = report(tmp_path, *runs)
    head = re.search(r"(?s)<thead>(.*?)</thead>", page.source)[1]
    assert re.findall(r'class="key">(.*?)</th>', head) == ["train.amp"]
    assert "<td>bf16 (auto)</td>" in page.source
    assert "<td>none (auto)</td>" in page.source


def test_runs_of_same_name_are_shown_with_parent_folder(tmp_path):
    page = report(tmp_path, make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run"))
    assert ">a/run</a>" in page.source
    assert ">b/run</a>" in page.source


def test_all_metrics_of_session_run_are_shown(tmp_path):
    found = [
        {"kind": "train", "step": step, "epoch": step / 10, "lr": 0.7, "elapsed": step / 5, "loss_d": 1 / step}
        | {"steps_per_second": 5.0}
        for step in range(1, 20)
    ]
    found.append({"kind": "validation", "step": 20, "elapsed": 4.0, "bleu": 31.5})
    run = make_run(tmp_path / "gan", found=found)
    (run / "config.toml").unlink()
    page = report(tmp_path, run)
    assert page.figures()[:4] == ["learning rate", "loss_d", "bleu", "optimizer steps/s"]
    assert "optimizer step</text>" in page.source  # bleu has no epoch


def test_run_with_lock_is_shown_as_running(tmp_path, capsys):
    run = make_run(tmp_path / "run", state="running")
    write(run / "lock", "{}")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    page = report(tmp_path, run)
    assert '<span class="state running">' in page.source
    assert capsys.readouterr().err == ""


def test_running_run_without_lock_is_shown_as_crashed(tmp_path):
    run = make_run(tmp_path / "run", state="running")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "latest").symlink_to("step_00000180")
    write(run / "logs" / "1" / "code", "137\n")
    page = report(tmp_path, run)
    assert '<span class="state crashed">' in page.source
    assert re.search(r'data-value="180">180</td><td class="n" data-value="20">20</td>', page.source)  # saved, lost
    assert '<td class="n">137</td>' in page.source


def test_lost_steps_of_crashed_attempt_are_read_from_log(tmp_path):
    run = make_run(tmp_path / "run", attempts=2)
    write(run / "logs/1/status.json", {"attempt": 1, "state": "running", "start_step": 0, "step": 0})
    (run / "verdict.1").unlink()
    write(run / "logs/1/stderr.log", "epoch 4/10  step 90  loss 1\nepoch 5/10  step 130  loss 1\nKilled\n")
    page = report(tmp_path, run)
    assert re.search(
        r'data-value="100">100</td><td class="n" data-value="30">30</td><td><span[^>]*>crashed', page.source
    )


def test_resource_usage_of_each_attempt_is_shown(tmp_path):
    run = make_run(tmp_path / "run", attempts=3)
    assert "used" not in report(tmp_path, run).source.partition("<h3>Attempts</h3>")[2]
    account = {"nodes": 2, "count": 4, "unit": "GPU", "seconds": 4500, "gpus_seen": 8, "busy": 87}
    write(run / "logs/1/account.json", account)
    write(run / "logs/2/account.json", {**account, "unit": "core", "gpus_seen": 0})
    write(run / "logs/3/account.json", {**account, "unit": "<b>", "seconds": -1})
    source = report(tmp_path, run).source
    assert re.findall(r"<td>([^<]*)</td></tr>", source.partition("<h3>Attempts</h3>")[2])[:3] == [
        "10.00 GPU-hours, 87 % busy",
        "10.00 core-hours",
        "",
    ]


def test_goodput_table_is_shown(tmp_path):
    run = make_run(tmp_path / "run", attempts=2)
    assert "Goodput" not in report(tmp_path, run).text
    line = {
        "time": 5000.0,
        "step": 9,
        "trained": 4000.0,
        "waited": 0.0,
        "evaluated": 0.0,
        "saved": 0.0,
        "started": 90.0,
    }
    lines = [{"attempt": 1, "began": 900.0, "nodes": 2, "spares": 1}, {**line, "attempt": 1}, {**line, "attempt": 2}]
    (run / "goodput.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report(tmp_path, run)
    assert re.search(r"\b2 h 16 min\b\D+\b2\b\D+\b1\.14 ", page.text)
    assert f"trained 2 h 13 min 97.68 % {MEANINGS['trained']}" in page.text
    assert re.search(r"\b1 2 1 h 6 min", page.text)


def test_profiles_are_shown_per_rank_and_invalid_ones_skipped(tmp_path):
    run = make_run(tmp_path / "run")
    assert "Profile" not in report(tmp_path, run).text
    found = {
        "seconds": 8.0,
        "device": "cpu",
        "parts": {"waiting for data": 1.0, "forward": 2.0, "backward": 4.0, "update": 0.5},
        "operators": [{"name": "aten::<mm>", "seconds": 2.0, "calls": 16}],
        "rank": 0,
        "steps": [3, 6],
    }
    write(run / "profile/rank10.json", found | {"device": "cuda"})
    write(run / "profile/rank2.json", found)
    broken = [{"seconds": 0}, {"seconds": float("nan")}, {"steps": 3}, {"parts": []}, {"operators": [1]}]
    for number, change in enumerate([*broken, {"parts": {"x": -1}}]):
        write(run / f"profile/rank{20 + number}.json", found | change)
    page = report(tmp_path, run)
    assert re.findall(r"<h3>Profile\D+(\d+)</h3>", page.source) == ["2", "10"]
    assert re.search(r"\b3\b\D+\b6\b\D+\b8\.0 s\b.* profile/rank2\.trace\.json\.gz", page.text)
    assert "backward 4000.0 ms 50.00 %" in page.text
    assert "the rest 500.0 ms 6.25 %" in page.text
    assert "aten::<mm> 16 2000.0 ms 25.00 %" in page.text
    captions = re.findall(r"<caption>(.*?)</caption>", page.source.partition("<h3>Profile")[2])
    assert ["GPU" in caption for caption in captions[:4]] == [False, False, True, True]


def test_failure_reason_is_shown(tmp_path):
    reason = "diverged: the loss is nan at step 200"
    page = report(tmp_path, make_run(tmp_path / "run", state="failed", reason=reason))
    assert f"failed: {reason}" in page.text


def test_folder_without_run_is_reported(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    report(tmp_path, tmp_path / "empty", tmp_path / "missing", code=78)
    err = capsys.readouterr().err
    assert slugs(err) == ["no-such-run", "cannot-read", "no-such-run"]
    assert_warning(err, "no-such-run", f"{tmp_path}/empty: ")
    assert_warning(err, "cannot-read", f"{tmp_path}/missing: ", "No such file")


def test_output_overwrites_only_report_page(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    metrics = run / "metrics.jsonl"
    before = metrics.read_text()
    (tmp_path / "link").symlink_to(metrics)
    for output in (metrics, tmp_path, tmp_path / "link", "/dev/null"):
        assert main([str(run), "--output", str(output)]) == 2
    assert metrics.read_text() == before
    said = messages(capsys.readouterr().err)
    assert [message[:2] for message in said] == [("error", "bad-flag-value")] * 4
    assert all(message.text.startswith("--output ") for message in said)
    report(tmp_path, run)
    report(tmp_path, run)
    assert main([str(run), "--output", str(tmp_path / "no" / "page.html")]) == 78
    assert_error(capsys.readouterr().err, "cannot-write", tmp_path / "no" / "page.html", "No such file")


def test_confusion_matrix_of_many_classes_is_image(tmp_path):
    run = make_run(tmp_path / "run")
    make_confusion(run, [f"c{number}" for number in range(100)])
    page = report(tmp_path, run)
    (source,) = [found["src"] for tag, found in page.tags if tag == "img"]
    png = base64.b64decode(source.partition(",")[2])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20]) == 100


EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}"


def test_text_from_run_folder_is_escaped(tmp_path):
    evil = EVIL.replace("/", "\u2215")  # a slash separates folders
    run = make_run(tmp_path / evil, state="failed", reason=EVIL)
    make_confusion(run, [EVIL, "</style>", "a\u202eb\x00"])
    write(run / "config.toml", f"[data]\n'a\"<b>' = {json.dumps(EVIL)}\n")
    write(run / "run.json", {"host": EVIL, EVIL: {EVIL: [EVIL]}, "variables": {EVIL: EVIL}})
    write(run / "logs/1/job", EVIL)
    extra = {"kind": EVIL, "step": 1, "elapsed": 1.0, EVIL: 3.0}
    write(run / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in [*records(), extra]))
    page = report(tmp_path, run, make_run(tmp_path / "other"))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == tags.count("style") == 1
    assert "img" not in tags
    assert html.escape(EVIL, quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in page.source
    assert "&gt;49" not in page.source
    assert "\u202e" not in page.source
    assert "\x00" not in page.source


def test_nonfinite_values_are_counted_and_omitted(tmp_path, capsys):
    found = records()
    found[4]["loss"], found[6]["loss"], found[8]["loss"] = math.nan, math.inf, 10**400
    page = report(tmp_path, make_run(tmp_path / "run", found=found))
    err = capsys.readouterr().err
    for kind, count in {"train": 2, "validation": 1}.items():
        assert_warning(err, "left-out", f"{tmp_path}/run: metrics.jsonl: {count} ", f" {kind} loss")
    assert page.source.count('class="lost"') == 6  # in two figures
    paths = re.findall(r' d="([^"]*)"', page.source)
    assert [path for path in paths if not re.fullmatch(r"[MLHVv\d. -]+", path)] == []


def test_extreme_values_are_drawn_without_nan(tmp_path):
    for number, values in enumerate([[1e308, -1e308], [5e-324, 1.0], [0.0, 0.0], [1e-300, 1e300], [-1.0, 1e9]]):
        found = [
            {"kind": "train", "step": step, "epoch": 1.0, "elapsed": 1e12 * step, "loss": value}
            for step, value in enumerate(values)
        ]
        page = report(tmp_path, make_run(tmp_path / f"run{number}", found=found))
        assert "loss" in page.figures()
        assert "nan" not in "".join(re.findall(r' d="([^"]*)"', page.source))


def damage(run):
    """Yield each file of a run that was replaced by invalid content, and the values that the error names."""
    write(run / "metrics.jsonl", (run / "metrics.jsonl").read_text() + "no json\n[1]\n" + "[" * 9999 + "\n{}\n")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "\xff\xfe", "step": 3}\n{"kind": "train", "step": 1e400}\n{"kind": "train"')
    yield "metrics.jsonl", " 7 ", " 57 ", " 51"
    (run / "status.json").unlink()
    os.mkfifo(run / "status.json")
    yield "status.json", "not a regular file"
    (run / "run.json").unlink()
    (run / "run.json").mkdir()
    yield "run.json", "not a regular file"
    (run / "config.toml").unlink()
    (run / "config.toml").symlink_to("/etc/hostname")
    yield "config.toml", "link"
    write(run / "figures/confusion.csv", "true,a,b,total\na,1\nb,1\n")
    yield ("figures/confusion.csv",)
    (run / "logs/1/status.json").write_bytes(b"\xff{" + b"[" * 9999)
    yield "logs/1/status.json", "JSON"
    (run / "verdict.1").unlink()
    (run / "verdict.1").symlink_to("/dev/zero")
    yield "verdict.1", "link"
    (run / "logs/2").symlink_to(run / "logs/1")
    yield "logs/2/status.json", "link"
    write(run / "goodput.jsonl", "{}")
    (run / "goodput.jsonl").chmod(0)
    yield "goodput.jsonl", "Permission denied"


def test_unreadable_files_are_reported_and_rest_is_shown(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    said = list(damage(run))
    with permissions_hold():
        page = report(tmp_path, run)
    err = capsys.readouterr().err
    for name, *values in said:
        assert_warning(err, "left-out", f"{run}: {name}: ", *values)
    assert all(line.startswith("trainer report: warning[left-out]: ") for line in err.splitlines())
    assert all(message.text.removeprefix(f"{run}: ") in page.text for message in messages(err))
    assert "loss" in page.figures()
    hostname = Path("/etc/hostname").read_text().strip()
    assert f"<pre>{hostname}" not in page.source


def test_run_name_that_is_not_utf8_is_shown(tmp_path):
    name = os.fsdecode(os.fsencode(str(tmp_path)) + b"/run\xff\n")
    page = report(tmp_path, make_run(Path(name)))
    assert "run\ufffd" in page.source


def test_long_run_is_downsampled_with_note(tmp_path):
    found = records(steps=20000, per_epoch=2000, every=2)
    found[7777]["loss"] = 55.5
    page = report(tmp_path, make_run(tmp_path / "run", found=found))
    short = report(tmp_path, make_run(tmp_path / "short", found=found[:100]))
    assert page.source.count("<small>") > short.source.count("<small>")
    assert len(page.source) < 120_000


@pytest.mark.parametrize("kind", ["study", "sweep"])
@pytest.mark.parametrize(
    "content",
    [*("", "[]", "{}", "[" * 9999), '{"schema": 2, "kind": "KIND", "points": {}, "trials": {}}'],
    ids=range(5),
)
def test_invalid_study_or_sweep_file_is_reported(tmp_path, capsys, kind, content):
    write(tmp_path / "set" / f"{kind}.json", content.replace("KIND", kind))
    assert report(tmp_path, tmp_path / "set").figures() == []
    assert_warning(capsys.readouterr().err, "left-out", f"{kind}.json: ")
