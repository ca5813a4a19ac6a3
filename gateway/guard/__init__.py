"""Guards where agents act: what is written is compared with the leases that its writer holds."""
