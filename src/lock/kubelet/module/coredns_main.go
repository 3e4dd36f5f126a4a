// CoreDNS alone, for a kubelet and components that come from elsewhere.
package main

func main() { coredns() }
