"""Known mistakes: those reported for public code, conventions of released models, and generic ones.

To add one, write an entry in `reported`. A test introduces each of them into a correct encoding and requires
that the checker names it.
"""

from pe_experiments.checking.candidate_and_reference import SMALL, model_shape
from pe_experiments.checking.components import SizedComponent
from pe_experiments.checking.known_mistakes.generic import (
    attention_hooks,
    generic_changes,
    layer_encodings,
    mistakes_at_table_ends,
    mistakes_while_decoding,
)
from pe_experiments.checking.known_mistakes.mistake import Change
from pe_experiments.checking.random_inputs import build


def generic_mistakes(
    component: SizedComponent, causal: bool, at_table_ends: bool
) -> list[tuple[str, Change]]:
    """Return the mistakes that any encoding can have, with their descriptions.

    With ``at_table_ends`` these include wrapped and clipped ids, at all usual sizes of tables.
    """
    encoding = build(component.build, model_shape(SMALL, causal))
    mistakes = [*generic_changes(encoding).items()]
    if any(map(attention_hooks, layer_encodings(encoding))):
        mistakes += mistakes_while_decoding()
    return [*mistakes, *mistakes_at_table_ends()] if at_table_ends else mistakes
