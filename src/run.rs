//! The one door to other programs: a command runs in namespaces with a tools tree or a root file system as its root.
