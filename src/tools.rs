//! Tools tree: the programs that a build or a run needs, unpacked once from locked packages.
