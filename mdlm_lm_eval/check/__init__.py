"""`mdlm-check`: a checkpoint against its authors' code, and what holds of it on this machine."""
