// The network of pods between nodes, made of flannel's packages: VXLAN, the subnets that the Nodes have, rules of nftables. Upstream's
// program is not compiled, since it has every backend in it, those of clouds with their clients too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan" // the backend "vxlan"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
	"github.com/flannel-io/flannel/pkg/version"
)

const (
	// Where the map of the cluster is mounted.
	configuration = "/etc/kube-flannel/net-conf.json"
	// What the node's bring-up waits for.
	subnetFile = "/run/flannel/subnet.env"
	// The prefix of the annotations by which nodes find each other: that of every flannel.
	annotations = "flannel.alpha.coreos.com"
	// How often what is not there yet is asked for, and how often at most before the kubelet starts this program anew.
	pause    = time.Second
	attempts = 60
)

func main() {
	addresses := flag.String("addresses", "", "the addresses of this node that the others reach, with commas between them")
	health := flag.String("health", "", "the address and port where /healthz and /readyz answer; empty for none")
	shown := flag.Bool("version", false, "print the version of flannel and end")
	flag.Parse()
	if *shown {
		fmt.Println(version.Version)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	node := &node{addresses: strings.Split(*addresses, ",")}
	if *health != "" {
		node.answer(*health)
	}
	// A node that is told to end is no failure, whatever was begun. Device, routes and rules stay: pods go on without this program.
	if err := node.run(ctx); err != nil && ctx.Err() == nil {
		klog.Errorf("the network of pods: %v", err)
		klog.Flush()
		os.Exit(1)
	}
}

// This node.
type node struct {
	addresses []string
	ready     atomic.Bool
}

// Sets the network up and keeps it, until the context ends.
func (n *node) run(ctx context.Context) error {
	// What was started ends with this function, also where that fails: the kubelet starts a new program only when this one has ended.
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	subnets, err := kube.NewSubnetManager(ctx, "", "", annotations, configuration, true)
	if err != nil {
		return fmt.Errorf("reading the Nodes: %w", err)
	}
	config, err := subnets.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("reading %s: %w", configuration, err)
	}
	if !config.EnableNFTables {
		return fmt.Errorf("%s: expected \"EnableNFTables\": true, there is no iptables in this image", configuration)
	}
	card, err := n.card(config)
	if err != nil {
		return err
	}
	// An address before a translation by the network, which somebody wrote to the Node.
	if v4, v6 := subnets.GetStoredPublicIP(ctx); v4 != "" || v6 != "" {
		translate(card, v4, v6)
	}
	kind, err := backend.NewManager(ctx, subnets, card).GetBackend(config.BackendType)
	if err != nil {
		return fmt.Errorf("%s: %w, expected vxlan", configuration, err)
	}
	network, err := register(ctx, kind, config, &running)
	if err != nil {
		return err
	}
	if err := rules(ctx, config, network); err != nil {
		return err
	}
	lease := network.Lease()
	if err := subnets.HandleSubnetFile(subnetFile, config, true, lease.Subnet, lease.IPv6Subnet, network.MTU()); err != nil {
		return fmt.Errorf("writing %s: %w", subnetFile, err)
	}
	n.ready.Store(true)
	klog.Infof("%s is written: packets of pods have at most %d bytes", subnetFile, network.MTU())
	if err := subnets.CompleteLease(ctx, lease, &running); err != nil {
		return fmt.Errorf("telling the API server that the network is there: %w", err)
	}
	network.Run(ctx)
	return errors.New("the other nodes are not followed any more")
}

// The device, and this node's entry for the others. A new Node has no subnets for a moment.
func register(ctx context.Context, kind backend.Backend, config *subnet.Config, running *sync.WaitGroup) (backend.Network, error) {
	for attempt := 1; ; attempt++ {
		network, err := kind.RegisterNetwork(ctx, running, config)
		if err == nil {
			return network, nil
		}
		if attempt == attempts {
			return nil, fmt.Errorf("setting up %s: %w", config.BackendType, err)
		}
		klog.Infof("setting up %s, attempt %d of %d: %v", config.BackendType, attempt, attempts, err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// Packets of pods are forwarded, and those that leave the cluster have the node's address.
func rules(ctx context.Context, config *subnet.Config, network backend.Network) error {
	tables := &nftables.NFTablesManager{}
	if err := tables.Init(ctx); err != nil {
		return fmt.Errorf("making tables of nftables: %w", err)
	}
	// Earlier networks and the seconds between two looks are for iptables alone: here a table is written whole.
	var none4 ip.IP4Net
	var none6 ip.IP6Net
	err := tables.SetupAndEnsureMasqRules(ctx,
		config.Network, none4, none4,
		config.IPv6Network, none6, none6,
		network.Lease(), 0, false)
	if err != nil {
		return fmt.Errorf("making the rules for packets that leave the cluster: %w", err)
	}
	tables.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, 0)
	return nil
}

// The card that has the node's addresses. It has one of each version that pods have.
func (n *node) card(config *subnet.Config) (*backend.ExternalInterface, error) {
	found := &backend.ExternalInterface{}
	cards, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the cards: %w", err)
	}
	for i := range cards {
		for _, text := range n.addresses {
			address := net.ParseIP(strings.TrimSpace(text))
			if address == nil || !has(&cards[i], address.Equal) {
				continue
			}
			if found.Iface == nil {
				found.Iface, found.IfaceName = &cards[i], cards[i].Name
			}
			if found.Iface.Index != cards[i].Index {
				return nil, fmt.Errorf("the node's addresses %v are on %s and %s, expected one card", n.addresses, found.IfaceName, cards[i].Name)
			}
			set(found, address)
		}
	}
	if found.Iface == nil {
		return nil, fmt.Errorf("no card has one of the node's addresses %v", n.addresses)
	}
	// A node is often registered by its IPv4 address alone.
	if config.EnableIPv6 && found.IfaceV6Addr == nil {
		has(found.Iface, func(address net.IP) bool {
			global := address.To4() == nil && address.IsGlobalUnicast()
			if global {
				set(found, address)
			}
			return global
		})
	}
	if config.EnableIPv4 && found.IfaceAddr == nil || config.EnableIPv6 && found.IfaceV6Addr == nil {
		return nil, fmt.Errorf("%s has no address of a version that pods have: IPv4 %v, IPv6 %v", found.IfaceName, config.EnableIPv4, config.EnableIPv6)
	}
	// The backend takes 50 bytes of a packet for VXLAN. Between addresses of IPv6 it is 70.
	if config.EnableIPv6 {
		found.Iface.MTU -= 20
	}
	klog.Infof("other nodes are reached by %s, from %v %v", found.IfaceName, found.IfaceAddr, found.IfaceV6Addr)
	return found, nil
}

// Whether a card has an address that is wanted.
func has(card *net.Interface, wanted func(net.IP) bool) bool {
	all, err := card.Addrs()
	if err != nil {
		return false
	}
	for _, one := range all {
		if network, ok := one.(*net.IPNet); ok && wanted(network.IP) {
			return true
		}
	}
	return false
}

func set(card *backend.ExternalInterface, address net.IP) {
	if v4 := address.To4(); v4 != nil {
		card.IfaceAddr, card.ExtAddr = v4, v4
	} else {
		card.IfaceV6Addr, card.ExtV6Addr = address, address
	}
}

// Others send to these addresses in place of the card's.
func translate(card *backend.ExternalInterface, v4, v6 string) {
	if address := net.ParseIP(v4).To4(); address != nil {
		card.ExtAddr = address
	}
	if address := net.ParseIP(v6); address != nil {
		card.ExtV6Addr = address
	}
}

// Answers the kubelet's probes.
func (n *node) answer(address string) {
	http.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/readyz", func(out http.ResponseWriter, _ *http.Request) {
		if !n.ready.Load() {
			http.Error(out, "the network of pods is not set up yet", http.StatusServiceUnavailable)
		}
	})
	go func() {
		err := http.ListenAndServe(address, nil)
		klog.Errorf("answering probes at %s: %v", address, err)
		klog.Flush()
		os.Exit(1)
	}()
}
