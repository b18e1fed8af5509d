import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dkaf
from dkaf.model.acquisition import ACQUISITIONS, Outlook, ei, log_ei, mi, ucb
from dkaf.model.inputs import Inputs
from dkaf.model.prior import Pool
from dkaf.policies import KernelPolicy

NU = torch.tensor(4.0, dtype=torch.float64)


def outlook(mean: list[float], var: list[float], best: float = 0.0, xi: float = 0.0) -> Outlook:
    return Outlook(
        torch.tensor(mean, dtype=torch.float64),
        torch.tensor(var, dtype=torch.float64),
        torch.tensor(best, dtype=torch.float64),
        torch.tensor(xi, dtype=torch.float64),
    )


def test_ei_equals_monte_carlo() -> None:
    view = outlook([0.0, 1.0, -2.0], [1.0, 0.25, 4.0], best=0.5)
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(400_000, 3, generator=draw, dtype=torch.float64)
    improvement = (view.mean + view.var.sqrt() * noise - view.best).clamp_min(0)
    error = 5 * improvement.std(0) / math.sqrt(len(noise))
    assert ((ei(view, NU) - improvement.mean(0)).abs() < error).all()


def test_mi_by_hand_on_three_steps() -> None:
    # Variances at the queried candidates before their observation: 1, then 0.5. So xi is 0, 1, 1.5.
    for xi, var, expected in (
        (0.0, 1.0, 2.0),
        (1.0, 0.5, 2 * (math.sqrt(1.5) - 1)),
        (1.5, 0.75, 2 * (1.5 - math.sqrt(1.5))),
    ):
        a = mi(outlook([3.0], [var], xi=xi), NU)
        assert a.item() == pytest.approx(3.0 + expected, abs=1e-12)


def test_xi_adds_up_the_variances_of_earlier_queries_before_they_were_observed() -> None:
    """Far apart candidates know nothing of each other: each has variance alpha + beta = 2 until it is observed."""
    settings = dkaf.recipe("paper", nu=4.0)
    policy = KernelPolicy(Inputs(1, "raw"), "mi", settings, "gp", None).double()
    with torch.no_grad():
        policy.prior.noise_floor.zero_()  # alpha = beta = eta = 1
    x = 100 * torch.arange(5, dtype=torch.float64).unsqueeze(1)
    pool = Pool(torch.arange(5).unsqueeze(0), torch.ones(1, 5, dtype=torch.bool))
    y = torch.tensor([[[7.0, 3.0, -1.0, 5.0]]], dtype=torch.float64)
    scores = policy.episode_scores(policy.points(x, pool), torch.tensor([[[0, 1, 2, 3]]]), y, initial=1)
    # Candidate 4 is never observed: its mean stays 0 and its variance 2, while xi is 0, 2, 4. The start does not count.
    expected = [2 * (math.sqrt(2 + xi) - math.sqrt(xi)) for xi in (0.0, 2.0, 4.0)]
    assert scores[0, 0, :, 4].tolist() == pytest.approx(expected, abs=1e-7)


def test_ucb_is_the_mean_without_uncertainty_and_the_deviation_without_mean() -> None:
    torch.testing.assert_close(ucb(outlook([5.0], [0.0]), NU), torch.tensor([5.0]).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(ucb(outlook([0.0], [9.0]), NU), torch.tensor([6.0]).double())


def test_first_mi_query_is_the_ucb_query() -> None:
    view = outlook([0.3, -0.1], [0.5, 2.0])
    torch.testing.assert_close(mi(view, NU), ucb(view, NU), atol=1e-5, rtol=0)


def test_mi_keeps_its_digits_when_xi_is_large() -> None:
    view = Outlook(*(value.float() for value in outlook([0.0, 0.0], [1.0, 2.0], xi=1e8)))
    a = mi(view, NU.float())
    torch.testing.assert_close(a[1] / a[0], torch.tensor(2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_ei_is_the_logarithm_of_ei_and_goes_on_where_ei_underflows(dtype: torch.dtype) -> None:
    from scipy.integrate import quad

    u = torch.tensor(
        [5.0, 1.0, 0.0, -0.999, -1.001, -3.0, -8.0, -12.9, -13.2, -20.0, -100.0, -159.0, -161.0, -1e4], dtype=dtype
    )
    view = Outlook(u, torch.ones_like(u), torch.zeros((), dtype=dtype), torch.zeros((), dtype=dtype))
    ours = log_ei(view, NU.to(dtype))
    # EI(u) = integral of (s) phi(s - u) over s > 0 = phi(u) * integral of s exp(us - s^2/2)
    for value, result in zip(u.tolist(), ours.tolist(), strict=True):
        scale = max(1.0, -value)
        integral = quad(
            lambda s, v=value, k=scale: s / k**2 * math.exp(v * s / k - (s / k) ** 2 / 2), 0, 60 * max(1, value)
        )[0]
        expected = math.log(integral) - value**2 / 2 - math.log(2 * math.pi) / 2
        assert result == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-9, abs=1e-5)
    order = log_ei(view, NU.to(dtype)).argsort()
    assert (order == u.argsort()).all()


@given(
    mean=st.floats(-1e4, 1e4),
    var=st.floats(0, 1e6),
    best=st.floats(-1e4, 1e4),
    xi=st.floats(0, 1e8),
    name=st.sampled_from(sorted(ACQUISITIONS)),
)
@settings(max_examples=300, deadline=None)
def test_values_and_gradients_are_finite_everywhere(mean: float, var: float, best: float, xi: float, name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        parts = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (mean, var, best, xi)]
        view = Outlook(parts[0][None], parts[1][None], parts[2], parts[3])
        score = ACQUISITIONS[name](view, NU.to(dtype))
        assert torch.isfinite(score).all()
        score.sum().backward()
        for part in parts:
            assert part.grad is None or torch.isfinite(part.grad)


@pytest.mark.parametrize("name", sorted(ACQUISITIONS))
def test_gradients_equal_finite_differences(name: str) -> None:
    draw = torch.Generator().manual_seed(1)
    mean = torch.linspace(-30, 5, 40, dtype=torch.float64).requires_grad_()
    var = (0.1 + torch.rand(40, generator=draw, dtype=torch.float64)).requires_grad_()
    best, xi = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, 0.7))
    nu = NU.clone().requires_grad_()

    def score(*parts: torch.Tensor) -> torch.Tensor:
        return ACQUISITIONS[name](Outlook(*parts[:4]), parts[4])

    assert torch.autograd.gradcheck(score, (mean, var, best, xi, nu))


def test_log_ei_in_single_precision_has_the_values_and_slopes_of_double_precision() -> None:
    u = torch.cat((torch.linspace(-40, 10, 5001), torch.tensor([-1.0, -1e4, -1e9, 50.0]))).double()
    values, slopes = [], []
    for dtype in (torch.float64, torch.float32):
        mean = u.to(dtype).requires_grad_()
        one, nothing = torch.ones_like(mean), torch.zeros((), dtype=dtype)
        value = log_ei(Outlook(mean, one, nothing, nothing), nothing + 1)
        values.append(value.detach().double())
        slopes.append(torch.autograd.grad(value.sum(), mean)[0].double())
    torch.testing.assert_close(values[1], values[0], atol=3e-6, rtol=1e-6)
    torch.testing.assert_close(slopes[1], slopes[0], atol=1e-5, rtol=1e-5)
