//! Platform: which machine this is.
