//! The one verified download: retries, size limit, hash, temporary file, sync, rename.
