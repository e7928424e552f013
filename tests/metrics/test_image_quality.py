"""Tests of PSNR, SSIM and MS-SSIM against values by hand, and scikit-image and SciPy in float64."""

import math
import types

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from learner.metrics import MSSSIM, PSNR, SSIM
from learner.metrics.image_quality import SCALES
from tests.support.codes import raises_code
from tests.support.more_metrics import similarity, value_of


def output(predictions, targets, mask=None):
    mask = None if mask is None else jnp.array(mask)
    arrays = (jnp.asarray(np.asarray(x, np.float32)) for x in (predictions, targets))
    return types.SimpleNamespace(**dict(zip(("predictions", "targets"), arrays, strict=True)), mask=mask)


def value(metric, *arrays):
    return float(value_of(metric, output(*arrays)))


def pictures(rows, height, width, channels=None, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    shape = (rows, height, width) if channels is None else (rows, height, width, channels)
    smooth = ndimage.gaussian_filter(rng.random(shape), (0, 2, 2) if channels is None else (0, 2, 2, 0))
    targets = (smooth - smooth.min()) / np.ptp(smooth)
    return np.clip(targets + noise * rng.normal(size=shape), 0, 1).astype(np.float32), targets.astype(np.float32)


def test_psnr_by_hand():
    targets = np.zeros((2, 2, 2))
    assert value(PSNR(), targets + 0.1, targets) == pytest.approx(20, rel=1e-6)
    assert value(PSNR(255), targets + 25.5, targets) == pytest.approx(20, rel=1e-6)
    assert value(PSNR(2.0), targets + 0.1, targets) == pytest.approx(20 + 20 * math.log10(2), rel=1e-6)


def test_psnr_is_the_mean_over_images():
    targets = np.zeros((2, 2, 2))
    predictions = targets + np.array([0.1, 0.001])[:, None, None]
    assert value(PSNR(), predictions, targets) == pytest.approx((20 + 60) / 2, rel=1e-6)
    assert value(PSNR(), predictions, targets, [0, 1]) == pytest.approx(60, rel=1e-6)
    predictions[0] = np.nan
    assert value(PSNR(), predictions, targets, [0, 1]) == pytest.approx(60, rel=1e-6)
    assert value(PSNR(), targets, targets) == math.inf
    assert math.isnan(value(PSNR(), targets, targets, [0, 0]))


@pytest.mark.full
def test_ssim_of_constant_images_is_their_luminance_term():
    one, other = np.full((1, 12, 12), 0.5), np.full((1, 12, 12), 0.25)
    expected = (2 * 0.5 * 0.25 + 1e-4) / (0.5**2 + 0.25**2 + 1e-4)
    for metric in (SSIM(), SSIM(window=7, gaussian=False)):
        assert value(metric, one, other) == pytest.approx(expected, abs=1e-5)
        assert value(metric, one, one) == pytest.approx(1, abs=1e-6)
    assert value(SSIM(255), 255 * one, 255 * other) == pytest.approx(expected, abs=1e-5)


def test_ssim_of_a_window_by_hand():
    """The images are one window of 3 x 3 pixels, and its mirror image."""
    a = np.arange(9.0).reshape(1, 3, 3) / 8
    b = a[:, :, ::-1]
    mean, var, both = a.mean(), a.var(ddof=1), np.cov(a.ravel(), b.ravel())[0, 1]
    expected = (2 * mean**2 + 1e-4) * (2 * both + 9e-4) / ((2 * mean**2 + 1e-4) * (2 * var + 9e-4))
    assert value(SSIM(window=3, gaussian=False), a, b) == pytest.approx(expected, rel=1e-5)


@pytest.mark.full
def test_ms_ssim_equals_float64():
    predictions, targets = pictures(2, 48, 64, seed=3)
    weights = (0.3, 0.7)
    expected = np.mean([similarity(*pair, weights) for pair in zip(*np.float64((predictions, targets)), strict=True)])
    assert 0.1 < expected < 0.95
    assert value(MSSSIM(weights=weights), predictions, targets) == pytest.approx(expected, abs=1e-5)


@pytest.mark.full
def test_ms_ssim_of_negative_correlations_is_0():
    _, targets = pictures(1, 24, 24, seed=5)
    assert value(MSSSIM(weights=(0.5, 0.5)), 1 - targets, targets) == 0
    assert value(SSIM(), 1 - targets, targets) < 0


@pytest.mark.full
def test_ms_ssim_with_default_weights():
    predictions, targets = pictures(2, 192, 176, 3, seed=4)
    channels = [
        (p[..., c], t[..., c]) for p, t in zip(*np.float64((predictions, targets)), strict=True) for c in range(3)
    ]
    expected = np.mean([similarity(*pair, SCALES) for pair in channels])
    assert value(MSSSIM(), predictions, targets) == pytest.approx(expected, abs=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("scale", [1, 255])
def test_values_equal_scikit_image(channels, noise, scale):
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    predictions, targets = (scale * x for x in pictures(3, 33, 40, channels, seed=int(100 * noise), noise=noise))
    options = {"data_range": scale, "channel_axis": None if channels is None else -1}
    pairs = list(zip(*np.float64((predictions, targets)), strict=True))
    authors = {"gaussian_weights": True, "use_sample_covariance": False, "sigma": 1.5}
    expected = np.mean([structural_similarity(*pair, **options, **authors) for pair in pairs])
    assert value(SSIM(scale), predictions, targets) == pytest.approx(expected, abs=1e-5)
    expected = np.mean([structural_similarity(*pair, **options, win_size=9) for pair in pairs])
    assert value(SSIM(scale, 9, gaussian=False), predictions, targets) == pytest.approx(expected, abs=1e-5)
    expected = np.mean([peak_signal_noise_ratio(t, p, data_range=scale) for p, t in pairs])
    assert value(PSNR(scale), predictions, targets) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: PSNR(0), "metric-data-range-value", ("PSNR", "0")),
        (lambda: SSIM(math.inf), "metric-data-range-value", ("SSIM", "inf")),
        (lambda: SSIM(window=8), "metric-window-value", ("SSIM", "8")),
        (lambda: MSSSIM(window=1), "metric-window-value", ("MSSSIM", "1")),
        (lambda: MSSSIM(weights=()), "metric-msssim-weights", ()),
        (lambda: MSSSIM(weights=0.5), "metric-msssim-weights", ("0.5",)),
        (lambda: MSSSIM(weights=(0.5, -1)), "metric-msssim-weights", ("-1",)),
    ],
)
def test_wrong_options(make, code, values):
    with raises_code(code, *values):
        make()


@pytest.mark.parametrize(
    ("metric", "shape", "code", "values"),
    [
        (SSIM(), (1, 10, 20), "metric-image-too-small", ("SSIM", "11", "10", "20")),
        (MSSSIM(), (1, 176, 175), "metric-image-too-small", ("MS-SSIM", "176", "175")),
        (PSNR(), (4, 4), "metric-image-shapes", ("PSNR", "(4, 4)")),
    ],
)
def test_wrong_shapes(metric, shape, code, values):
    with raises_code(code, *values):
        value(metric, np.zeros(shape), np.zeros(shape))
    with raises_code("metric-image-shapes"):
        value(metric, np.zeros((2, 20, 20)), np.zeros((2, 20, 20, 1)))


def test_names():
    metrics = [PSNR(), PSNR(255), PSNR(0.5), SSIM(), SSIM(255), SSIM(window=7), SSIM(gaussian=False), MSSSIM()]
    metrics += [MSSSIM(weights=(0.5, 0.5)), MSSSIM(window=7)]
    assert [metric.name for metric in metrics] == [
        "PSNR",
        "PSNR to 255",
        "PSNR to 0,5",
        "SSIM",
        "SSIM to 255",
        "SSIM of 7 pixels",
        "SSIM uniform",
        "MS-SSIM",
        "MS-SSIM by 0,5 0,5",
        "MS-SSIM of 7 pixels",
    ]
