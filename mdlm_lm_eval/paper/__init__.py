"""The claims of "Masks Can Be Distracting" (arXiv 2511.21338), and the verdict on each of them for one model."""
