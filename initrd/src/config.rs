//! Config: found, fetched, verified, merged and validated whole before the first write.
