"""Ways of decoding, one file each, under the names that the option `sampler` takes."""
