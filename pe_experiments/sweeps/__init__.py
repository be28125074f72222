"""Many runs from one command, on this machine or on a cluster; `sweep` puts the pieces together."""
