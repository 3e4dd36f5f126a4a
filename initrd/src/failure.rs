//! Failure: the plain report, the ledger, and the policy after it.
