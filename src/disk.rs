//! Disk: GPT with ESP, root and hash tree.
