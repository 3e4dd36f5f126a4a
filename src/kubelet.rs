//! Kubelet: the program from its first source that answers, and the container it runs in.
