//! Node settings: the defaults of the image under the file of the config.
