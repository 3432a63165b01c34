"""What is replaced for a while is as it was afterwards: values, and whether an attribute is the holder's own."""

from __future__ import annotations

import pytest

from exportdoctor.core.patch_attribute import patch_attribute, patch_attributes, patch_item


class Plain:
    size = 1


class Strict(Plain):
    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("written through __setattr__")


def test_an_inherited_attribute_is_inherited_again() -> None:
    holder = Plain()
    with patch_attribute(holder, "size", 2):
        assert (holder.size, Plain.size) == (2, 1)
    assert "size" not in vars(holder)


def test_an_own_attribute_comes_back_after_an_error() -> None:
    holder = Plain()
    holder.size = 5
    with pytest.raises(KeyError), patch_attribute(holder, "size", 2):
        raise KeyError
    assert holder.size == 5


def test_an_object_is_written_past_its_own_setattr() -> None:
    holder = Strict()
    with patch_attribute(holder, "size", 2):
        assert holder.size == 2
    assert holder.size == 1


def test_several_are_restored_when_a_later_one_fails() -> None:
    with pytest.raises(TypeError), patch_attributes([(Plain, "size", 2), (object, "size", 3)]):
        pass
    assert Plain.size == 1


def test_an_item_comes_back_or_goes() -> None:
    table = {"a": 1}
    with patch_item(table, "a", 2), patch_item(table, "b", 3):
        assert table == {"a": 2, "b": 3}
    assert table == {"a": 1}
