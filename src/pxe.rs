//! Serves a PXE artifact folder by HTTP.
