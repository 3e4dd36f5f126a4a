//! Kernel: the image and the modules of the locked kernel package.
