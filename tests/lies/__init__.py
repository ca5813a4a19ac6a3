"""A gateway that cheats, and the auditor that has to find it: each lie beside the honest ledger it was made from."""
