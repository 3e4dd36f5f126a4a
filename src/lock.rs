//! Lock: every package, download and container image of a recipe, pinned by path, size and digest.
