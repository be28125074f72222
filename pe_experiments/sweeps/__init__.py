"""Run many configurations from one command, on this machine or a cluster; Hydra's plugins call `launch`."""
