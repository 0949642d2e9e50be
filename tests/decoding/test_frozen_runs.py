"""Today's engine beside the frozen runs, a part of which is drawn here; `python -m benchmarks.frozen_runs` runs all."""

import pytest

from tests.support.frozen_runs import difference, frozen, recorded

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", range(4))
def test_runs_are_as_they_were_frozen(part: int) -> None:
    runs = frozen()[part::21]  # of each way of decoding now one of its four variants, now another one
    differing = [(run, names) for run, record in runs if (names := difference(record, recorded(run)))]
    assert not differing
