package config

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// Address is where a listener listens.
type Address struct {
	TLS  bool
	Host string // "" for a unix socket
	Port int    // 0 for a unix socket
	Path string // of a unix socket, "" otherwise
}

// Network is the network for net.Listen: "tcp" or "unix".
func (a Address) Network() string {
	if a.Path != "" {
		return "unix"
	}
	return "tcp"
}

// Listen is the address for net.Listen.
func (a Address) Listen() string {
	if a.Path != "" {
		return a.Path
	}
	return net.JoinHostPort(a.Host, strconv.Itoa(a.Port))
}

// String gives the address as it is written in config.properties, with the port.
func (a Address) String() string {
	switch {
	case a.Path != "":
		return "unix:" + a.Path
	case a.TLS:
		return "https://" + a.Listen()
	default:
		return "http://" + a.Listen()
	}
}

// defaultPorts are the ports of an address without one.
type defaultPorts struct{ http, https int }

var errAddress = errors.New(`it has to be http://host:port, https://host:port or unix:/path`)

const maxPort = 65535

// parseAddress reads an address. TorchServe takes no IPv6 literals; here they are written in brackets.
func parseAddress(text string, ports defaultPorts) (Address, error) {
	m := regexp.MustCompile(`^(?i:(https?)://(\[[0-9a-f:.%]+\]|[^:/\[\]^]+)(?::([0-9]+))?/?|unix:(/.*))$`).FindStringSubmatch(text)
	if m == nil {
		return Address{}, errAddress
	}
	if m[4] != "" {
		return Address{Path: m[4]}, nil
	}
	a := Address{TLS: strings.EqualFold(m[1], "https"), Host: strings.Trim(m[2], "[]")}
	switch {
	case m[3] != "":
		port, err := strconv.Atoi(m[3])
		if err != nil || port > maxPort {
			return Address{}, fmt.Errorf("the port is above %d", maxPort)
		}
		a.Port = port
	case a.TLS:
		a.Port = ports.https
	default:
		a.Port = ports.http
	}
	return a, nil
}
