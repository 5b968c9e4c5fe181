"""A group of one behaves as a group of many."""

from __future__ import annotations

import numpy as np
import pytest

from darksight_core.fit.distributed.process_group import ProcessGroup, assign_blocks


def test_shared_arrays_lie_in_memory_as_after_a_message() -> None:
    """torch rounds by the order of memory, so a process alone must get arrays in the order that others get them."""
    turned = np.arange(6.0).reshape(2, 3).T

    shared = ProcessGroup().broadcast(lambda: {"means": turned})["means"]

    assert shared.flags.c_contiguous
    np.testing.assert_array_equal(shared, turned)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_row_is_assigned_once(size: int) -> None:
    """Shares follow each other without a gap, whatever does not divide evenly."""
    shares = [assign_blocks(50_001, rank, size) for rank in range(size)]

    assert [row for share in shares for row in (share.start, share.stop)][1:-1:2] == [s.start for s in shares[1:]]
    assert (shares[0].start, shares[-1].stop) == (0, 50_001)
