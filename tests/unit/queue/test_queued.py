"""What the queue keeps in memory of the recipients that are left."""

from relay.queue.queued import MOST_RUNS, runs


def test_recipients_in_a_row_of_one_domain_are_one_run() -> None:
    assert runs(["a@x.example", "b@X.example", "c@y.example"]) == (("@x.example", 2), ("@y.example", 1))


def test_what_follows_the_last_run_counts_to_it() -> None:
    found = runs(f"a@{number}.example" for number in range(MOST_RUNS + 2))

    assert (len(found), found[-1]) == (MOST_RUNS, (f"@{MOST_RUNS - 1}.example", 3))
