"""What Hydra finds by itself: launchers, a sweeper, and where configurations come from besides ``configs/``.

Hydra imports these modules when any of its applications starts, so they import nothing that is slow.
"""
