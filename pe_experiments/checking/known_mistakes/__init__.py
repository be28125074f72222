"""Known mistakes: those reported for public code, conventions of released models, and generic ones.

To add one, write an entry in `reported`. A test introduces each of them into a correct encoding and requires
that the checker names it.
"""
