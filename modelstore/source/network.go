package source

import (
	"fmt"
	"net/netip"
)

// network is a part of the address space that is not to be reached without the operator's word.
type network struct {
	prefix netip.Prefix
	what   string
}

// closedNetworks are what IANA lists as not globally reachable, and two cloud platforms' addresses for their own machines.
func closedNetworks() []network {
	list := []struct{ prefix, what string }{
		{"0.0.0.0/8", "an unspecified"},
		{"10.0.0.0/8", "a private"},
		{"100.64.0.0/10", "a shared (carrier-grade NAT)"},
		{"127.0.0.0/8", "a loopback"},
		{"168.63.129.16/32", "a cloud platform's metadata"},
		{"169.254.0.0/16", "a link-local or cloud metadata"},
		{"172.16.0.0/12", "a private"},
		{"192.0.0.0/24", "a reserved"},
		{"192.0.2.0/24", "a documentation"},
		{"192.88.99.0/24", "a reserved"},
		{"192.168.0.0/16", "a private"},
		{"198.18.0.0/15", "a benchmarking"},
		{"198.51.100.0/24", "a documentation"},
		{"203.0.113.0/24", "a documentation"},
		{"224.0.0.0/4", "a multicast"},
		{"240.0.0.0/4", "a reserved"},
		{"::/128", "an unspecified"},
		{"::1/128", "a loopback"},
		{"64:ff9b:1::/48", "a private (NAT64)"},
		{"100::/64", "a reserved"},
		{"2001::/23", "a reserved"}, // Teredo, ORCHID and more
		{"2001:db8::/32", "a documentation"},
		{"3fff::/20", "a documentation"},
		{"5f00::/16", "a reserved"},
		{"fc00::/7", "a private"},
		{"fe80::/10", "a link-local"},
		{"fec0::/10", "a private"},
		{"ff00::/8", "a multicast"},
	}
	networks := make([]network, len(list))
	for i, n := range list {
		networks[i] = network{netip.MustParsePrefix(n.prefix), n.what}
	}
	return networks
}

// carriers are IPv6 networks whose addresses hold an IPv4 address, which is where the packets end; at is the byte that it begins at.
func carriers() map[netip.Prefix]int {
	return map[netip.Prefix]int{
		netip.MustParsePrefix("::/96"):        12, // IPv4-compatible
		netip.MustParsePrefix("64:ff9b::/96"): 12, // NAT64
		netip.MustParsePrefix("2002::/16"):    2,  // 6to4
	}
}

// refusedError is an address that must not be reached.
type refusedError struct {
	address netip.Addr
	what    string
}

// Error does not name the address: who asks for a host's name is not to learn what it means inside.
func (e *refusedError) Error() string {
	return fmt.Sprintf("the host has %s address, which is not to be fetched from", e.what)
}

// filter says which addresses may be reached.
type filter struct {
	closed   []network
	carriers map[netip.Prefix]int
	listed   []netip.Prefix // by the operator
}

func newFilter(listed []netip.Prefix) *filter {
	f := &filter{closed: closedNetworks(), carriers: carriers()}
	for _, p := range listed {
		if a := p.Addr(); a.Is4In6() && p.Bits() >= mappedBits {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-mappedBits)
		}
		f.listed = append(f.listed, p)
	}
	return f
}

// mappedBits is how long the part of an IPv4-mapped IPv6 address is that says so.
const mappedBits = 96

// check gives a *refusedError for an address that must not be reached.
func (f *filter) check(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	if !a.IsValid() {
		return &refusedError{a, "an unknown kind of"}
	}
	for _, p := range f.listed {
		if p.Contains(a) {
			return nil
		}
	}
	for _, n := range f.closed {
		if n.prefix.Contains(a) {
			return &refusedError{a, n.what}
		}
	}
	if !a.Is6() {
		return nil
	}
	bytes := a.As16()
	for p, at := range f.carriers {
		if p.Contains(a) {
			return f.check(netip.AddrFrom4([4]byte(bytes[at : at+4])))
		}
	}
	return nil
}
