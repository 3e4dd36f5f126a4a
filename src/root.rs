//! Root: the tree and its layers sealed as EROFS with a dm-verity hash tree.
