"""log p(continuation | context): Monte-Carlo bound, left-to-right chain, the decoder's own; windows of long texts."""
