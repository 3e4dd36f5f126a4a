// CoreDNS with the plugins that Kubernetes' configuration of it names, and those that a cluster's own commonly adds: none of a
// cloud or of another server's zones. Their order at work is upstream's, whatever the order here.
package main

import (
	"flag"
	"os"
	"slices"

	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/any"
	_ "github.com/coredns/coredns/plugin/autopath"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/debug"
	_ "github.com/coredns/coredns/plugin/dns64"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metadata"
	_ "github.com/coredns/coredns/plugin/metrics" // prometheus
	_ "github.com/coredns/coredns/plugin/pprof"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
	_ "github.com/coredns/coredns/plugin/tls"
	_ "github.com/coredns/coredns/plugin/transfer"
	_ "github.com/coredns/coredns/plugin/whoami"
)

// What CoreDNS defines on the process's command line when it is linked.
var ofCoreDNS = []string{"conf", "dns.port", "p", "pidfile", "plugins", "quiet", "version"}

// Leaves on the process's command line either CoreDNS's options or those of the others: kubeadm takes what stands there.
func options(coredns bool) {
	all := flag.CommandLine
	flag.CommandLine = flag.NewFlagSet(os.Args[0], flag.ExitOnError)
	all.VisitAll(func(option *flag.Flag) {
		if slices.Contains(ofCoreDNS, option.Name) == coredns {
			flag.Var(option.Value, option.Name, option.Usage)
		}
	})
}

func coredns() {
	options(true)
	coremain.Run()
}
