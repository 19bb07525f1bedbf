"""What only listings show, packed in pages: nothing is lost, and little is kept of what left."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.mail.header import Names
from relay.queue.pages import DROPPED, ROWS, YOUNG, Page, Pages
from relay.queue.queued import ListedWords, Queued, RecipientsLeft, origin_of
from relay.queue.whole import Queue


@given(st.lists(st.one_of(st.text(max_size=40), st.integers(0, 9)), max_size=4 * ROWS), st.booleans())
def test_each_row_is_what_was_kept_until_it_is_dropped(steps: list[str | int], is_packed: bool) -> None:
    pages, kept = Pages(), list[tuple[Page, int, str]]()
    for step in steps:
        for page in {page for page, _, _ in kept if is_packed and page.is_full and page._packed is None}:
            page.pack()
        if isinstance(step, str):
            kept.append((*pages.keep(step), step))
        elif step < len(kept):
            page, row, _ = kept.pop(step)
            page.drop(row)
        for page, row, text in kept:
            assert page.text(row) == text


def test_pages_are_packed_but_for_the_last_ones() -> None:
    pages = Pages()
    kept = [(*pages.keep(f"{number}"), f"{number}") for number in range((YOUNG + 3) * ROWS)]

    assert [page._packed is not None for page, _, _ in kept[::ROWS]] == [True, True] + [False] * (YOUNG + 1)
    assert all(page.text(row) == text for page, row, text in kept)


def test_a_packed_page_takes_a_third_of_its_texts() -> None:
    texts = [
        f"<{number * 7919:016x}@mail.example>\nsomebody{number}@customer.example" for number in range(ROWS)
    ]
    page = Page()
    assert [page.add(text) for text in texts] == list(range(ROWS))

    assert page.is_full
    page.pack()
    assert sys.getsizeof(page) + sys.getsizeof(page._packed) < sum(map(len, texts)) // 3


def test_few_that_stay_do_not_keep_the_texts_of_many() -> None:
    page = Page()
    for number in range(ROWS):
        page.add(f"{hash((number, 'chance')):x}" * 8)
    page.pack()
    full_bytes = sys.getsizeof(page._packed)
    for row in range(1, ROWS):
        page.drop(row)

    assert sys.getsizeof(page._packed) < full_bytes / 4
    assert page.text(0) == f"{hash((0, 'chance')):x}" * 8


def test_a_queue_gives_back_the_rows_of_what_leaves_it() -> None:
    queue, page = Queue(), None
    queue.use(["isp"], [])
    for number in range(ROWS):
        shown = ListedWords(Names(f"<{number}@x>"), number, (f"b{number}@there.example",))
        queue.add(Queued(QueueId(f"{number:03d}"), origin_of("s"), 1, 0, 1, listed=shown), now_ns=0)
    for number in range(ROWS - 1):
        (part,) = queue.parts(QueueId(f"{number:03d}"))
        page = part.listed
        queue.remove(part.queue_id)

    (last,) = queue.parts(QueueId(f"{ROWS - 1:03d}"))
    assert (last.shown.names.message_id, last.listed is page) == (f"<{ROWS - 1}@x>", True)
    assert isinstance(page, Page)
    assert page.text(0) == DROPPED


def test_what_is_left_of_an_attempted_message_is_listed() -> None:
    queue = Queue()
    queue.use(["isp"], [])
    for number in range(ROWS):
        shown = ListedWords(Names(f"<{number}@x>"), number, ("b@there.example", "c@there.example"))
        queue.add(Queued(QueueId(f"{number:03d}"), origin_of("s"), 1, 0, 2, listed=shown), now_ns=0)
    (part,) = queue.parts(QueueId("005"))
    left = RecipientsLeft((("there.example", 1),), ("c@there.example",))
    queue.line("isp").attempted(part.key, tried=frozenset(), refusals=0, singled_out=0, left=left)

    assert part.shown == ListedWords(Names("<5@x>"), 5, ("c@there.example",))
    (other,) = queue.parts(QueueId("006"))
    assert other.shown == ListedWords(Names("<6@x>"), 6, ("b@there.example", "c@there.example"))
