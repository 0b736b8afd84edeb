"""The compiled kernel gives numpy's bits, whatever the values, sizes and numbers of threads."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedfa import kernel
from fedfa.kernel import CompiledKernel, Floats, NumpyKernel
from hatch_build import compile_kernel

FLOATS = {
    "normal": lambda bits: np.random.default_rng(int(bits[0])).standard_normal(bits.size),
    "any finite": lambda bits: bits.view(np.float32),
    "denormal": lambda bits: (bits & 0x807F_FFFF).view(np.float32),
    "huge": lambda bits: (bits & 0x80FF_FFFF | 0x7E00_0000).view(np.float32),
    "heavy tails": lambda bits: np.random.default_rng(int(bits[0])).standard_cauchy(bits.size),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("kernel") / "kernel.so"
    assert compile_kernel(target), "these tests need a C compiler (cc)"
    return target


def vectors(law: str, *, seed: int, count: int, size: int) -> list[Floats]:
    bits = np.random.default_rng(seed).integers(0, 2**32, (count, size), np.uint32)
    rows = [FLOATS[law](row).astype(np.float32) for row in bits]
    return [np.where(np.isfinite(row), row, np.float32(1)) for row in rows]


@settings(max_examples=150)
@given(
    law=st.sampled_from(sorted(FLOATS)),
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 70_000),
    count=st.integers(1, 12),
    keep=st.sampled_from([0.0, 1.0, 0.3, -1e300]),
    step=st.sampled_from([1.0, 0.2, 1e-300, 1e300]),
    threads=st.integers(1, 5),
)
@example("normal", 0, 300_001, 10, 1.0, 0.1, 2)
@example("huge", 0, 16, 2, 1.0, 1e300, 1)
def test_a_weighted_sum_has_the_bits_of_numpy(
    library: Path,
    law: str,
    seed: int,
    size: int,
    count: int,
    keep: float,
    step: float,
    threads: int,
) -> None:
    compiled = CompiledKernel(library, num_threads=threads, threaded_from=1)
    previous, *rows = vectors(law, seed=seed, count=count + 1, size=size)
    weights = np.random.default_rng(seed).lognormal(size=count).tolist()

    found, expected = np.empty_like(previous), np.empty_like(previous)
    for each, out in ((compiled, found), (NumpyKernel(), expected)):
        each.weighted_sum(out, previous, rows, weights, divisor=3.0, step=step, keep=keep)

    is_nan = np.isnan(expected)  # inf - inf: its sign and payload are nobody's promise
    assert (np.isnan(found) == is_nan).all()
    assert found[~is_nan].tobytes() == expected[~is_nan].tobytes()


@settings(max_examples=150)
@given(
    law=st.sampled_from(sorted(FLOATS)),
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(0, 200_000),
    threads=st.integers(1, 5),
)
@example("normal", 0, 0, 1)
@example("normal", 0, 1, 1)
@example("normal", 0, 65_536, 2)
@example("normal", 0, 65_537, 2)
@example("any finite", 0, 1_000_003, 3)
def test_a_sum_of_squares_has_the_bits_of_numpy(
    library: Path, law: str, seed: int, size: int, threads: int
) -> None:
    compiled = CompiledKernel(library, num_threads=threads, threaded_from=1)
    values, origin = vectors(law, seed=seed, count=2, size=max(size, 1))
    values, origin = values[:size], origin[:size]

    assert compiled.squares(values) == NumpyKernel().squares(values)
    assert compiled.squares(values, origin) == NumpyKernel().squares(values, origin)


def test_a_sum_of_squares_tells_every_non_finite_value(library: Path) -> None:
    compiled = CompiledKernel(library, num_threads=2, threaded_from=1)
    for at in (0, 31, 32, 65_535, 65_536, 99_999):
        for bad in (np.nan, np.inf, -np.inf):
            values = np.full(100_000, np.finfo(np.float32).max, np.float32)
            for each in (compiled, NumpyKernel()):
                assert np.isfinite(each.squares(values))
            values[at] = bad
            for each in (compiled, NumpyKernel()):
                assert not np.isfinite(each.squares(values))


def test_a_previous_model_that_is_replaced_is_not_read(library: Path) -> None:
    infinite, ones = np.full(100, np.inf, np.float32), np.ones(100, np.float32)
    for each in (CompiledKernel(library, num_threads=1), NumpyKernel()):
        out = np.empty_like(ones)
        each.weighted_sum(out, infinite, [ones], [2.0], divisor=1.0, step=1.0, keep=0.0)
        assert (out == 2).all()


def test_vectors_that_do_not_fit_are_refused(library: Path) -> None:
    ones = np.ones(100, np.float32)
    compiled = CompiledKernel(library, num_threads=1)
    for bad in (ones[:99], np.ones(100), np.ones(200, np.float32)[::2]):
        with pytest.raises(AssertionError):
            compiled.weighted_sum(ones.copy(), ones, [bad], [1.0], divisor=1.0, step=1.0, keep=1.0)
        with pytest.raises(AssertionError):
            compiled.squares(ones, bad)


def test_the_package_as_installed_runs_compiled() -> None:
    assert kernel.kernel.name == "compiled", (
        f"{kernel.LIBRARY} is missing or old: install the package again, with a C compiler"
    )


def test_without_a_library_or_with_a_broken_one_numpy_does_the_work(tmp_path: Path) -> None:
    broken = tmp_path / "kernel.so"

    assert kernel.best(broken).name == "numpy"
    broken.write_bytes(b"for another machine")
    assert kernel.best(broken).name == "numpy"
