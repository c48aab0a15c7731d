"""What is said where the libraries that trace are not installed."""

from __future__ import annotations

import pytest

import vramplan
from vramplan.errors import MissingDependencyError, UnsupportedError
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend import dependencies


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "NEEDED", ("no_such_library",))


@pytest.mark.usefixtures("nothing_installed")
def test_the_exact_install_line() -> None:
    with pytest.raises(MissingDependencyError) as caught:
        vramplan.estimate("qwen2.5-0.5b", "h100", by="trace")
    assert str(caught.value).endswith('not installed: pip install "vramplan[probe]"')


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("ask", [vramplan.estimate, lambda *names: vramplan.suggest(*names, 8)])
def test_architectures_without_a_block(ask: object) -> None:
    spec = ModelSpec(name="some/hybrid", model_type="jamba", config={"hidden_size": 64})
    with pytest.raises(UnsupportedError) as caught:
        ask(spec, "h100")  # type: ignore[operator]
    assert "does not support the architecture 'jamba'" in str(caught.value)
    assert 'pip install "vramplan[probe]"' in str(caught.value)
