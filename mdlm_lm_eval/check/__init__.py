"""`mdlm-check`: compares a checkpoint with its authors' code, and measures it on this machine."""
