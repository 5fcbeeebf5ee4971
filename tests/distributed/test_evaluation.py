"""Evaluation counts every sample once, on any number of ranks."""

from support import train, train_many

FLAGS = ["--epochs", "2", "--val-fraction", "0.2031", "--val-batch-size", "50", "--no-figures"]


def test_confusion_matrix_is_same_on_one_two_and_three_ranks(tmp_path, table):
    begun = tmp_path / "begun"
    train_many("single", 1, {begun: FLAGS, tmp_path / "1": [*FLAGS, "--resume", str(begun)]}, tmp_path / "log")
    tables = {}
    for ranks in (1, 2, 3):
        out = tmp_path / str(ranks)
        if ranks > 1:
            train("forked", ranks, out, *FLAGS, "--resume", str(begun))
        tables[ranks] = [(out / "figures" / name).read_text() for name in ("confusion.csv", "classes.csv")]
    total = tables[1][0].splitlines()[-1].split(",")
    table(
        "confusion matrix, last row (predicted per class, total)",
        [(f"{n} ranks", tables[n][0].splitlines()[-1]) for n in tables],
    )
    assert total[0] == "total"
    assert int(total[-1]) == 365, "which neither 2 nor 3 divides"
    assert tables[1] == tables[2] == tables[3]
