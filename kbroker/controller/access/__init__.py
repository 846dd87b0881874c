"""ACLs, delegation tokens and SCRAM users."""
