"""The counter of live storages: what it sees, when, and to whom it charges it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from taylor.dryrun.torch_stage.counter import TRANSIENT, LiveCounter, fused, rounded  # noqa: E402


def test_a_size_is_rounded_up_to_512_bytes() -> None:
    assert [rounded(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]


@pytest.mark.parametrize("fake", [True, False])
def test_a_storage_counts_from_its_making_until_its_last_view_is_gone(fake: bool) -> None:
    counter = LiveCounter()
    with FakeTensorMode(allow_non_fake_inputs=not fake) if fake else torch.no_grad(), counter:
        x = torch.empty(1000)
        assert counter.total == 4096
        view = x.view(10, 100)[3]
        del x
        assert counter.total == 4096
        del view
        assert counter.total == 0
    assert counter.peak == 4096


def test_an_operator_in_place_makes_nothing_and_one_out_of_place_a_storage() -> None:
    counter = LiveCounter()
    with counter:
        x = torch.zeros(1024)
        x.add_(1)
        assert counter.total == 4096
        y = x + 1
        assert counter.total == 8192
        del y
    assert (counter.total, counter.peak) == (4096, 8192)


def test_inside_a_kernel_only_what_outlives_it_counts() -> None:
    @fused
    def kernel(x):  # type: ignore[no-untyped-def]
        wide = x.repeat(100)
        return wide[: x.numel()].clone()

    for see, peak in ((False, 2 * 4096), (True, 102 * 4096)):
        counter = LiveCounter(see_kernels=see)
        with counter:
            x = torch.zeros(1024)
            y = kernel(x)
            assert counter.total == 8192
            del y
        assert counter.peak == peak


def test_what_outlives_a_block_is_charged_to_its_category_and_the_rest_stays_transient() -> None:
    counter = LiveCounter()
    with counter:
        with counter.category("weights"):
            weight = torch.zeros(1024)
        with counter.survivors("activations"):
            kept = weight * 2
            gone = kept * 2
            del gone
        assert counter.live["weights"] == counter.live["activations"] == 4096
        # At the peak nobody had claimed what was to be kept.
        assert counter.at_peak == {"weights": 4096, TRANSIENT: 8192}
        assert weight.numel() == kept.numel()
        counter.move(kept, "buffers")
        assert (counter.live["activations"], counter.live["buffers"]) == (0, 4096)


def test_the_peak_of_a_window_forgets_what_was_before_it() -> None:
    counter = LiveCounter()
    with counter:
        large = torch.zeros(4096)
        del large
        counter.start_window()
        small = torch.zeros(1024)
        assert (counter.window_peak, counter.peak) == (4096, 16384)
        del small


def test_the_breakdown_at_the_peak_adds_up_to_it() -> None:
    counter = LiveCounter()
    with counter:
        weight = torch.zeros(512, 512, requires_grad=True)
        for rows in (64, 512, 32):
            (torch.zeros(rows, 512) @ weight).square().sum().backward()
    assert sum(counter.at_peak.values()) == counter.peak
