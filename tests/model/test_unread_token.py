"""A distillation token that no classifier reads, as in Hugging Face's DeiT for one classifier, is one more register."""

import explain_cases as cases
import pytest
import tiny
import torch

from vitviz.attribution.registry import METHODS, attribute

ASKED = {"rise": {"masks": 8}, "kernel_shap": {"samples": 32}, "smoothgrad": {"samples": 2}}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_token_that_is_not_read_explains_nothing_by_itself(method: str) -> None:
    register = tiny.model(3, registers=1, **cases.SMALL)
    unread = tiny.model(4, distillation_token=True, **cases.SMALL)
    state = register.state_dict()
    state["dist_token"] = state.pop("reg_token")
    for part in ("weight", "bias"):  # the mean of two classifiers, of which the second says nothing
        state[f"head_dist.{part}"] = torch.zeros_like(state[f"head.{part}"])
        state[f"head.{part}"] = 2 * state[f"head.{part}"]
    unread.load_state_dict(state)
    images = tiny.images(1, **cases.SMALL)
    torch.testing.assert_close(unread(images), register(images))
    options = {name: value for name, value in ASKED.get(method, {}).items() if name in METHODS[method].options}
    torch.manual_seed(0)
    expected = attribute(register, images, 3, method, **options)
    torch.manual_seed(0)
    found = attribute(unread, images, 3, method, **options)
    torch.testing.assert_close(found.patches, expected.patches, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.prefix, expected.prefix, rtol=1e-4, atol=1e-5)
