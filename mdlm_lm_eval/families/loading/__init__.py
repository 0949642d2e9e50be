"""From a published checkpoint to transformers' own classes, as the checkpoint's family says."""
