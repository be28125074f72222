"""The word problems: groups that are not solvable, products of matrices, reveals of the state."""

from __future__ import annotations

import numpy as np
import pytest

from pe_experiments.tasks.groups import Group, WordProblem


def matrices(task: WordProblem) -> np.ndarray:
    """Return the permutation matrices of all elements: column i has its one in row p(i)."""
    result = np.zeros((task.order, 5, 5), dtype=int)
    for element, permutation in enumerate(task.elements):
        result[element, list(permutation), range(5)] = 1
    return result


@pytest.mark.parametrize(("group", "order"), [("s5", 120), ("a5", 60)])
def test_the_table_is_the_product_of_permutation_matrices(group: Group, order: int) -> None:
    task = WordProblem(group)
    elements = matrices(task)
    assert task.order == len({element.tobytes() for element in elements}) == order
    assert set(np.linalg.det(elements).round()) == ({1.0} if group == "a5" else {1.0, -1.0})
    table = task.product_GG.numpy()
    for y in range(order):
        assert np.array_equal(elements[table[y]], elements[y] @ elements)
