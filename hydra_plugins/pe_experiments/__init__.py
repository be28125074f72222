"""Plugins that Hydra discovers: launchers, a sweeper and sources of configuration files.

Hydra imports these modules at the start of every application, so they must not import slow modules.
"""
