"""Many runs from one command, on this machine or on a cluster.

`expansion` lists the runs a command stands for, `jobs` says how far each is, `launching` hands those that are
left to one of the `engines` and follows them, `worker` carries them out; `sweep` puts them together.
"""
