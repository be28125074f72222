"""Many runs from one command, on this machine or on a cluster; the plugins of Hydra call `launch`."""
