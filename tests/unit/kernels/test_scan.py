"""The scan by chunks equals the recurrence in values, states and gradients, and is exactly causal."""

import pytest
import torch
from torch import Tensor

from trainer_core.engine.backends.guard import CaptureGuard
from trainer_core.kernels.scan import layout, scan
from trainer_core.kernels.scan.layout import chunk_length
from trainer_core.kernels.scan.reference import scan_reference
from trainer_core.kernels.target import traced_for

SHAPES = {
    "one token": (2, 1, 4, 3, 2, 5),
    "a short row": (1, 7, 2, 8, 1, 3),
    "one chunk": (2, 16, 4, 3, 4, 5),
    "one token more": (1, 17, 2, 4, 1, 4),
    "many chunks": (2, 85, 6, 4, 2, 3),
    "one compartment": (2, 37, 4, 4, 1, 1),
    "one compartment of groups": (2, 85, 6, 4, 2, 1),
    "many compartments": (1, 70, 2, 3, 1, 40),
    "one channel": (1, 33, 2, 1, 1, 4),
    "nothing but one": (1, 1, 1, 1, 1, 1),
}
"""B, T, H, P, G, N by name."""


FORMS = pytest.mark.parametrize(
    "shape", [SHAPES["many chunks"], SHAPES["one compartment of groups"]], ids=str
)
"""Scans of both forms that a CPU has."""


def inputs(shape: tuple[int, ...], *, state: bool = True, seed: int = 0) -> list[Tensor]:
    """u, dt, A, b, r and the first potentials, in float64, with e-fold lengths from 1 to 1000."""
    B, T, H, P, G, N = shape
    g = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=g, dtype=torch.float64)

    dt, A = (normal(B, T, H) - 2).exp(), -(2 * normal(H) - 1).exp()
    held = [normal(B, T, H, P), dt, A, normal(B, T, G, N), normal(B, T, G, N), normal(B, H, P, N)]
    return held if state else held[:-1]


def run(fn, held: list[Tensor], **options: int) -> list[Tensor]:
    """y, the last potentials and every gradient, for fixed gradients of both results."""
    held = [x.detach().requires_grad_() for x in held]
    out = fn(*held, **options)
    g = torch.Generator().manual_seed(7)
    weights = [torch.randn(x.shape, generator=g, dtype=torch.float64).to(x.dtype) for x in out]
    return [x.detach() for x in out] + list(torch.autograd.grad(out, held, weights))


def off(got: Tensor, wanted: Tensor) -> float:
    """The largest error relative to the largest value."""
    largest = wanted.abs().max().clamp(min=torch.finfo(torch.float64).tiny)
    return ((got.double() - wanted.double()).abs().max() / largest.double()).item()


def compare(held: list[Tensor], value: float = 1e-13, gradient: float = 1e-12, **options: int) -> None:
    twin = run(scan_reference, [x.double() for x in held])
    for i, (got, wanted) in enumerate(zip(run(scan, held, **options), twin, strict=True)):
        assert off(got, wanted) < (value if i < 2 else gradient), i


@pytest.mark.parametrize("chunk", [None, 4, 32])
@pytest.mark.parametrize("state", [True, False], ids=["from a state", "from rest"])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_recurrence(shape: str, state: bool, chunk: int | None) -> None:
    compare(inputs(SHAPES[shape], state=state), chunk=chunk)


@pytest.mark.parametrize("size", [1, 200, 1 << 12], ids=["a chunk", "some chunks", "some rows"])
def test_blocks_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CPU_BLOCK", size)
    compare(inputs((3, 85, 6, 4, 2, 3)))


@FORMS
@pytest.mark.parametrize("rate", [-1e-6, -50.0, -700.0])
def test_any_decay(rate: float, shape: tuple[int, ...]) -> None:
    """Also that of A, which is a sum of nothing but what a fast decay leaves."""
    held = inputs(shape)
    held[1], held[2] = 0.5 + held[1], torch.full_like(held[2], rate)
    compare(held)
    assert all(x.isfinite().all() for x in run(scan, [x.float() for x in held]))


@FORMS
def test_a_flush_among_slow_tokens(shape: tuple[int, ...]) -> None:
    """A sum over a chunk would drown the slow ones in the fast one."""
    held = [x.float() for x in inputs(shape)]
    held[1].fill_(1e-3)[:, 5] = 1e6
    held[2].fill_(-1.0)
    compare(held, 1e-6, 1e-6)


@FORMS
@pytest.mark.parametrize("scale", [1e15, 1e-15, 1e-42], ids=["large", "tiny", "denormal"])
def test_values_of_any_size(scale: float, shape: tuple[int, ...]) -> None:
    held = inputs(shape)
    held[0], held[5] = held[0] * scale, held[5] * scale
    held = [x.float() for x in held]
    bar = 1e-6 if scale > 1e-30 else 0.1
    compare(held, bar, bar)


@pytest.mark.parametrize("shape", ["one token", "many chunks", "one compartment of groups"])
def test_what_skips_the_compartments(shape: str) -> None:
    *held, state = inputs(SHAPES[shape])
    skip = torch.linspace(-1, 2, held[2].numel(), dtype=torch.float64)

    def skipping(of):
        return lambda *held: of(*held[:5], held[6], skip=held[5])

    got, wanted = (run(skipping(of), [*held, skip, state]) for of in (scan, scan_reference))
    assert all(
        off(x, y) < (1e-13 if i < 2 else 1e-12) for i, (x, y) in enumerate(zip(got, wanted, strict=True))
    )
    frozen = [x.requires_grad_() for x in inputs(SHAPES[shape])]
    without = torch.autograd.grad(scan(*frozen, skip=skip)[0].sum(), frozen[:5])
    assert off(without[0], torch.autograd.grad(scan(*frozen)[0].sum(), frozen[0])[0] + skip[:, None]) < 1e-12


@FORMS
def test_slices_of_something_wider_give_equal_bits(shape: tuple[int, ...]) -> None:
    B, T, H, P, G, N = shape
    mixed = torch.randn(B, T, H * P + 2 * G * N, generator=torch.Generator().manual_seed(2))
    u, b, r = mixed.split([H * P, G * N, G * N], dim=-1)
    _, dt, A, *_ = (x.float() for x in inputs(shape))
    held = [u.view(B, T, H, P), dt, A, b.view(B, T, G, N), r.view(B, T, G, N)]
    whole = [x.contiguous() for x in held]
    results = []
    for leaves in ([x.detach().requires_grad_() for x in held], [x.detach().requires_grad_() for x in whole]):
        y = scan(*leaves)[0]
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@FORMS
def test_float32_and_bfloat16(shape: tuple[int, ...]) -> None:
    held = [x.float() for x in inputs(shape)]
    compare(held, 1e-6, 1e-5)
    narrow = [x.bfloat16() if i in (0, 3, 4) else x for i, x in enumerate(held)]
    wide = [x.float() for x in narrow]
    got, wanted = run(scan, narrow), run(scan, wide)
    assert torch.equal(got[0], wanted[0].bfloat16()) and torch.equal(got[1], wanted[1])
    assert [x.dtype for x in got[2:]] == [x.dtype for x in narrow]
    assert all(off(x, y) < 2**-7 for x, y in zip(got[2:], wanted[2:], strict=True))


@FORMS
def test_what_comes_later_changes_no_bit(shape: tuple[int, ...]) -> None:
    held = [x.float() for x in inputs(shape)]
    y = scan(*held)[0]
    for t in (1, 15, 16, 17, 40):
        later = [x.clone() for x in held]
        for x in (later[0], later[1], later[3], later[4]):
            x[:, t:] = x[:, t:] * 3 + 1
        changed = scan(*later)[0]
        assert torch.equal(changed[:, :t], y[:, :t]) and not torch.equal(changed[:, t:], y[:, t:])


@FORMS
def test_rows_in_parts_carry_the_potentials(shape: tuple[int, ...]) -> None:
    u, dt, A, b, r, state = inputs(shape)
    y, last = scan(u, dt, A, b, r, state)
    got = []
    for part in (slice(0, 1), slice(1, 22), slice(22, 85)):
        out, state = scan(u[:, part], dt[:, part], A, b[:, part], r[:, part], state)
        got.append(out)
    assert off(torch.cat(got, 1), y) < 1e-14 and off(state, last) < 1e-14


@FORMS
def test_two_backward_passes_give_equal_bits(shape: tuple[int, ...]) -> None:
    held = [x.float() for x in inputs(shape)]
    assert all(torch.equal(x, y) for x, y in zip(run(scan, held), run(scan, held), strict=True))


@FORMS
def test_gradients_of_one_result_alone(shape: tuple[int, ...]) -> None:
    held = [x.requires_grad_() for x in inputs(shape)]
    for i in (0, 1):
        got = torch.autograd.grad(scan(*held)[i].sum(), held)
        wanted = torch.autograd.grad(scan_reference(*held)[i].sum(), held, materialize_grads=True)
        assert all(off(x, y) < 1e-12 for x, y in zip(got, wanted, strict=True))


@FORMS
def test_inputs_in_any_memory_order(shape: tuple[int, ...]) -> None:
    held = inputs(shape)
    turned = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in held]
    assert all(torch.equal(x, y) for x, y in zip(run(scan, held), run(scan, turned), strict=True))


@pytest.mark.parametrize("N", [1, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_meta_tensors_trace_both_passes(dtype: torch.dtype, N: int) -> None:
    """Results have the shapes and types of a CPU's, and nothing is made elsewhere or read on the host."""
    with torch.device("meta"):
        u, b, r = (
            torch.empty(size, dtype=dtype) for size in ((2, 300, 4, 8), (2, 300, 1, N), (2, 300, 1, N))
        )
        dt, A, state = torch.empty(2, 300, 4), torch.empty(4), torch.empty(2, 4, 8, N)
    held = [x.requires_grad_() for x in (u, dt, A, b, r, state)]
    guard = CaptureGuard("scan", constants=held)
    with guard:
        y, last = scan(*held)
        gradients = torch.autograd.grad((y, last), held, (torch.empty_like(y), torch.empty_like(last)))
    assert not guard.problems and len(guard.calls) > 50
    assert (y.shape, y.dtype, last.shape, last.dtype) == (u.shape, dtype, state.shape, torch.float32)
    for x, gradient in zip(held, gradients, strict=True):
        assert (gradient.shape, gradient.dtype, gradient.stride()) == (x.shape, x.dtype, x.stride())


@pytest.mark.parametrize("N", [1, 3])
def test_the_operators_are_sound(N: int) -> None:
    """Schema, fakes and autograd, by torch's own checks."""
    held = [x.requires_grad_() for x in inputs((1, 18, 2, 2, 1, N))]
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    for args in ((*held[:5], held[2], held[5], 16), (*held[:5], None, None, 8)):
        torch.library.opcheck(torch.ops.nstrain.scan.default, args, test_utils=checks)


def test_lengths_of_chunks() -> None:
    def length(T: int, dtype: torch.dtype, device: str, wanted: int | None = None, N: int = 1) -> int:
        u, b = (torch.empty(1, T, 1, size, dtype=dtype, device=device) for size in (1, N))
        return chunk_length(u, b, wanted)

    assert [length(T, torch.float32, "cpu") for T in (1, 7, 300)] == [1, 7, 16]
    assert [length(300, torch.float32, "cpu", N=N) for N in (31, 32, 128)] == [16, 32, 32]
    assert [length(T, torch.bfloat16, "meta") for T in (1, 17, 300)] == [1, 16, 16]
    with traced_for("cuda"):
        assert [length(T, torch.bfloat16, "meta") for T in (1, 17, 100, 300)] == [16, 32, 128, 128]
        assert length(300, torch.float32, "meta") == 64 and length(300, torch.float32, "meta", 20) == 32
    assert length(300, torch.float32, "cpu", 20) == 20
