"""Batch callbacks."""

import inspect

import pytest

from trainer.callbacks import Callback, call_each


def test_whatever_has_the_method_is_called_in_order():
    calls = []

    class Has:
        def __init__(self, name):
            self.name = name

        def setup(self, *args):
            calls.append((self.name, args))

    call_each([Has("a"), object(), Has("b")], "setup", 1, 2)
    assert calls == [("a", (1, 2)), ("b", (1, 2))]


def test_the_first_exception_goes_up():
    class Raises:
        def setup(self):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        call_each([Raises(), Callback()], "setup")


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("setup", "trainer pl_module stage"),
        ("on_train_batch_start", "trainer pl_module batch batch_idx"),
        ("on_train_batch_end", "trainer pl_module outputs batch batch_idx"),
        ("on_validation_batch_start", "trainer pl_module batch batch_idx dataloader_idx"),
        ("on_validation_batch_end", "trainer pl_module outputs batch batch_idx dataloader_idx"),
        ("on_test_batch_start", "trainer pl_module batch batch_idx dataloader_idx"),
        ("on_test_batch_end", "trainer pl_module outputs batch batch_idx dataloader_idx"),
    ],
)
def test_the_base_class_has_the_documented_signatures(method, parameters):
    signature = inspect.signature(getattr(Callback(), method))
    assert list(signature.parameters) == parameters.split()
    if "dataloader_idx" in parameters:
        assert signature.parameters["dataloader_idx"].default == 0
