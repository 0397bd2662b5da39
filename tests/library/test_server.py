"""A toy server of examples/ gives each request what it gives it alone, in pages that other requests have had."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from conftest import ROOT
from models import device

__all__ = ["device"]
pytestmark = pytest.mark.transformers


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    torch.manual_seed(5)
    return import_module("server")


def check_alone(server: Any, device: str, number: int, *, exact: bool, **options: Any) -> None:
    """Checks that requests have the logits and tokens in company that each has alone, and that pages are used again."""
    model = server.model_on(device)
    requests = server.requests_of(number)
    pages = 3 * server.MOST_PAGES
    together = server.Server(model, pages, **options)
    together.serve(requests)
    needed = [len(of.pages) for of in requests]
    assert together.together > 2 and sum(needed) > pages and sorted(together.free) == [*range(pages)]
    for request in requests:
        alone = replace(request, tokens=[], logits=[], pages=[], keys=0)
        server.Server(model, pages, **options).serve([alone])
        found, expected = torch.stack(request.logits), torch.stack(alone.logits)
        if exact:
            assert alone.tokens == request.tokens and torch.equal(found, expected)
        else:
            # After tokens that differ, all others do.
            same = next((n for n, two in enumerate(zip(alone.tokens, request.tokens)) if two[0] != two[1]), len(found))
            torch.testing.assert_close(found[: same + 1], expected[: same + 1], atol=0.1, rtol=0)


def test_linear_layers_compute_a_row_alike_alone_and_in_company(server: Any, device: str) -> None:
    """Attention is left out here: each layer's output is its queries."""
    check_alone(server, device, 20, exact=True, attend=lambda q, *arguments, **options: q)


def test_a_request_has_alone_what_it_has_in_company(server: Any, device: str) -> None:
    on_gpu = device == "cuda"
    check_alone(server, device, 100 if on_gpu else 14, exact=on_gpu)


def test_a_request_that_no_pool_holds_is_refused(server: Any, device: str) -> None:
    with pytest.raises(ValueError, match="a request needs 7 pages, expected at most 6"):
        server.Server(server.model_on(device), 6).serve([server.Request([1] * 90, 8)])
