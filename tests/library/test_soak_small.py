"""A hundred passes of what ``make soak`` does ten thousand times."""

from tests.soak import MEGABYTE, read, run


def test_a_hundred_passes_leave_nothing_behind():
    before, after = run(120, warm_up=60)
    assert after.tensors <= before.tensors
    assert after.objects <= before.objects + 200
    assert after.resident <= before.resident + 16 * MEGABYTE


def test_the_reading_would_notice():
    before = read()
    kept = [object.__new__(type("Kept", (), {})) for _ in range(500)]
    assert read().objects >= before.objects + len(kept)
