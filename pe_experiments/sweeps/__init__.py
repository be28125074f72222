"""Many runs from one command, on this machine or on a cluster; the launchers of ``hydra_plugins`` call `launch`."""
